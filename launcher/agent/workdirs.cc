// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/workdirs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "launcher/agent/account.h"
#include "launcher/agent/run_folder.h"
#include "launcher/package/package.h"

namespace lockstep::launcher {
namespace {

// Longer than a coordinator waits for who takes a piece.
constexpr absl::Duration kSilence = absl::Minutes(1);
// Where many nodes want one at once, each waits for its turn; a coordinator that ends in the middle
// has a successor.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr int64_t kMostKept = int64_t{1} << 30;

bool Passes(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

bool IsFolder(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

Workdirs::Workdirs(Settings settings)
    : settings_(std::move(settings)),
      kept_({.folder = settings_.folder,
             .most_bytes = settings_.folder.empty() ? coordinator::kMostPackedBytes : kMostKept}),
      thread_("agent-workdirs", [this] { Loop(); }) {}

Workdirs::~Workdirs() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  settings_.client->Stop();
  thread_.Join();
}

void Workdirs::Prepare(const WorkerAssignment& assignment,
                       std::function<void(const absl::Status&)> done) {
  {
    absl::MutexLock lock(&mu_);
    wishes_.push_back({assignment, std::move(done)});
  }
  changed_.NotifyAll();
}

bool Workdirs::stopped() {
  absl::MutexLock lock(&mu_);
  return stop_;
}

void Workdirs::Loop() {
  while (true) {
    Wish wish;
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(
          &mu_, absl::InfiniteDuration(),
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !wishes_.empty(); });
      if (stop_) return;
      wish = std::move(wishes_.front());
      wishes_.pop_front();
    }
    wish.done(Make(wish.assignment));
  }
}

absl::StatusOr<std::string> Workdirs::Take(const std::string& id) {
  if (absl::StatusOr<std::string> kept = kept_.Get(id); kept.ok()) return kept;
  absl::Time deadline = Clock::Real()->Now() + kPatience;
  absl::StatusOr<std::string> bytes;
  do {
    bytes = settings_.client->Get(id, kSilence);
    if (!Passes(bytes.status())) break;
    // While no coordinator is there, nothing is done without it either.
    if (absl::IsUnavailable(bytes.status())) deadline = Clock::Real()->Now() + kPatience;
    absl::MutexLock lock(&mu_);
    changed_.AwaitFor(&mu_, settings_.try_again,
                      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_; });
    if (stop_) return absl::CancelledError("stopped");
  } while (Clock::Real()->Now() < deadline);
  // What cannot be kept is taken again for the next job.
  if (bytes.ok()) kept_.Put(id, *bytes).IgnoreError();
  return bytes;
}

absl::Status Workdirs::Make(const WorkerAssignment& assignment) {
  const std::string folder = WorkFolder(assignment);
  if (IsFolder(folder)) return absl::OkStatus();
  const std::string id = coordinator::PackageOf(assignment.spec().workdir());
  absl::StatusOr<std::string> bytes = Take(id);
  if (!bytes.ok()) {
    const absl::StatusCode code =
        Passes(bytes.status()) ? absl::StatusCode::kUnavailable : bytes.status().code();
    return absl::Status(code, absl::StrCat("the job's workdir does not come from the coordinator: ",
                                           std::string(bytes.status().message())));
  }
  std::optional<Account> account;
  if (settings_.as_users) {
    LS_ASSIGN_OR_RETURN(account, FindAccount(assignment.user(), settings_.allow_root));
  }
  const AsAccount as(account);
  LS_RETURN_IF_ERROR(MakeRunFolder(assignment, settings_.own_run_folder));
  // Hosts may share the run's folder: the first one to be done gives it its name.
  const std::string making =
      absl::StrCat(RunFolder(assignment), "/.workdir-", assignment.incarnation());
  std::error_code ignored;
  std::filesystem::remove_all(making, ignored);
  absl::Status made = UnpackFolder(*bytes, id, making);
  if (made.ok() && ::rename(making.c_str(), folder.c_str()) != 0) made = ErrnoStatus(errno, folder);
  if (made.ok()) return made;
  std::filesystem::remove_all(making, ignored);
  return IsFolder(folder) ? absl::OkStatus() : made;
}

}  // namespace lockstep::launcher
