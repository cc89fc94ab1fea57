// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/workdirs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/fd.h"
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

// Returns whether the assignment's workdir is there. Errors: FailedPrecondition where it or the
// run's folder is not the account's that the thread acts as.
absl::StatusOr<bool> IsThere(const WorkerAssignment& assignment, bool own_run_folder) {
  const std::string path = WorkFolder(assignment);
  if (!IsAsAccount()) {
    struct stat status;
    return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  }
  const absl::StatusOr<UniqueFd> run = FindRunFolder(assignment, own_run_folder);
  if (absl::IsNotFound(run.status())) return false;
  LS_RETURN_IF_ERROR(run.status());
  const std::string name = path.substr(path.rfind('/') + 1);
  const UniqueFd workdir(
      ::openat(run->get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!workdir.valid()) return false;  // what else is there has a folder not take its name
  LS_RETURN_IF_ERROR(CheckOwner(workdir.get(), path, workdir.get()));
  return true;
}

}  // namespace

Workdirs::Workdirs(Settings settings)
    : settings_(std::move(settings)),
      kept_({.folder = settings_.folder,
             .most_bytes = settings_.folder.empty() ? coordinator::kMostPackedBytes : kMostKept}) {
  for (int i = 0; i < kMostAtOnce; ++i) threads_.emplace_back("agent-workdirs", [this] { Loop(); });
}

Workdirs::~Workdirs() {
  Stop(absl::ZeroDuration());
  for (Thread& thread : threads_) thread.Join();
}

std::vector<std::string> Workdirs::Stop(absl::Duration timeout) {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  settings_.client->Stop();
  absl::MutexLock lock(&mu_);
  changed_.AwaitFor(&mu_, timeout,
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return busy_jobs_.empty(); });
  return {busy_jobs_.begin(), busy_jobs_.end()};
}

void Workdirs::Prepare(const WorkerAssignment& assignment,
                       std::function<void(const absl::Status&)> done) {
  {
    absl::MutexLock lock(&mu_);
    wishes_.push_back({assignment, std::move(done), ++last_wish_});
  }
  changed_.NotifyAll();
}

// The oldest whose job has none under way, whose package nobody is about to have, and which finds a
// place for its transfer if it needs one: no thread waits for that.
std::optional<Workdirs::Wish> Workdirs::NextWish() {
  std::set<std::string> wait = busy_jobs_;  // a job's are made in their order
  for (auto wish = wishes_.begin(); wish != wishes_.end(); ++wish) {
    const std::string id = coordinator::PackageOf(wish->assignment.spec().workdir());
    if (wait.contains(wish->assignment.job_id())) continue;
    if (taking_.contains(id) || (wish->transfers && transfers_ == kMostTransfers)) {
      wait.insert(wish->assignment.job_id());
      continue;
    }
    Wish next = std::move(*wish);
    wishes_.erase(wish);
    busy_jobs_.insert(next.assignment.job_id());
    taking_[id] = next.assignment.job_id();
    next.has_place = next.transfers;
    if (next.has_place) ++transfers_;
    return next;
  }
  return std::nullopt;
}

void Workdirs::Loop() {
  while (true) {
    std::optional<Wish> wish;
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(&mu_, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        if (!stop_) wish = NextWish();
        return stop_ || wish.has_value();
      });
      if (!wish.has_value()) return;
    }
    const std::optional<absl::Status> made = Make(*wish);
    if (made.has_value()) wish->done(*made);
    {
      absl::MutexLock lock(&mu_);
      GiveBack(*wish);
      busy_jobs_.erase(wish->assignment.job_id());
      if (!made.has_value()) PutBack(*std::move(wish));
    }
    changed_.NotifyAll();
  }
}

void Workdirs::PutBack(Wish wish) {
  const auto later = std::find_if(wishes_.begin(), wishes_.end(),
                                  [&](const Wish& other) { return other.number > wish.number; });
  wishes_.insert(later, std::move(wish));
}

void Workdirs::GiveBack(Wish& wish) {
  const std::string id = coordinator::PackageOf(wish.assignment.spec().workdir());
  const auto found = taking_.find(id);
  if (found != taking_.end() && found->second == wish.assignment.job_id()) taking_.erase(found);
  if (!std::exchange(wish.has_place, false)) return;
  --transfers_;
  for (Wish& other : wishes_) {  // they look whether it is there now
    if (coordinator::PackageOf(other.assignment.spec().workdir()) == id) other.transfers = false;
  }
}

absl::StatusOr<std::string> Workdirs::Take(Wish& wish) {
  const std::string id = coordinator::PackageOf(wish.assignment.spec().workdir());
  absl::StatusOr<std::string> bytes = kept_.Get(id);
  if (bytes.ok() || !wish.has_place) return bytes;
  bytes = Transfer(id);
  // What cannot be kept is taken again for the next job.
  if (bytes.ok()) kept_.Put(id, *bytes).IgnoreError();
  return bytes;
}

absl::StatusOr<std::string> Workdirs::Transfer(const std::string& id) {
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
  return bytes;
}

std::optional<absl::Status> Workdirs::Make(Wish& wish) {
  std::optional<Account> account;
  if (settings_.as_users) {
    LS_ASSIGN_OR_RETURN(account, FindAccount(wish.assignment.user(), settings_.allow_root));
  }
  {
    AsAccount as;
    LS_RETURN_IF_ERROR(as.Become(account));
    LS_ASSIGN_OR_RETURN(const bool there, IsThere(wish.assignment, settings_.own_run_folder));
    if (there) return absl::OkStatus();
  }
  const absl::StatusOr<std::string> bytes = Take(wish);
  if (!bytes.ok() && !wish.has_place) {
    wish.transfers = true;
    return std::nullopt;
  }
  {
    absl::MutexLock lock(&mu_);
    GiveBack(wish);
  }
  changed_.NotifyAll();
  if (bytes.ok()) return Unpack(wish.assignment, account, *bytes);
  const absl::StatusCode code =
      Passes(bytes.status()) ? absl::StatusCode::kUnavailable : bytes.status().code();
  return absl::Status(code, absl::StrCat("the job's workdir does not come from the coordinator: ",
                                         std::string(bytes.status().message())));
}

absl::Status Workdirs::Unpack(const WorkerAssignment& assignment,
                              const std::optional<Account>& account, const std::string& bytes) {
  const std::string folder = WorkFolder(assignment);
  AsAccount as;
  LS_RETURN_IF_ERROR(as.Become(account));
  LS_RETURN_IF_ERROR(MakeRunFolder(assignment, settings_.own_run_folder));
  // Hosts may share the run's folder: the first one to be done gives it its name.
  const std::string making =
      absl::StrCat(RunFolder(assignment), "/.workdir-", assignment.incarnation());
  std::error_code ignored;
  std::filesystem::remove_all(making, ignored);
  absl::Status made =
      UnpackFolder(bytes, coordinator::PackageOf(assignment.spec().workdir()), making);
  if (made.ok() && ::rename(making.c_str(), folder.c_str()) != 0) made = ErrnoStatus(errno, folder);
  if (made.ok()) return made;
  std::filesystem::remove_all(making, ignored);
  LS_ASSIGN_OR_RETURN(const bool there, IsThere(assignment, settings_.own_run_folder));
  return there ? absl::OkStatus() : made;
}

}  // namespace lockstep::launcher
