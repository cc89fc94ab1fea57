// SPDX-License-Identifier: Apache-2.0
#include "worker/command/node_setup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/lock_file.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

std::string FileName(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-'; }, '_');
  return text;
}

// What this life of the host, or of the container, has that no other one has: what the command made
// may be gone with the former.
std::string LifeOfHost() {
  const std::string first_process = ReadText("/proc/1/stat");
  // Its 22nd field is when it began; the second, in brackets, may hold spaces.
  const std::vector<std::string> fields = absl::StrSplit(
      first_process.substr(std::min(first_process.rfind(')'), first_process.size())), ' ');
  return absl::StrCat(absl::StripAsciiWhitespace(ReadText("/proc/sys/kernel/random/boot_id")), " ",
                      fields.size() > 20 ? fields[20] : "");
}

}  // namespace

NodeSetup::NodeSetup(std::string run_dir, const std::string& node_id, std::string command)
    : lock_path_(absl::StrCat(run_dir, "/.setup-", FileName(node_id), ".lock")),
      done_path_(absl::StrCat(run_dir, "/.setup-", FileName(node_id), ".done")),
      command_(std::move(command)) {}

void NodeSetup::SayWhoHasIt() {
  if (std::exchange(told_, true)) return;
  const std::string pid(absl::StripAsciiWhitespace(ReadText(lock_path_)));
  // Not to stderr: should the rank's command fail, its own last lines there are what is shown.
  const std::string line =
      absl::StrCat("waits for another rank of this node", pid.empty() ? "" : ", process ", pid,
                   ", which runs the job's setup and holds ", lock_path_, "\n");
  (void)!::write(STDOUT_FILENO, line.data(), line.size());
}

absl::StatusOr<bool> NodeSetup::Advance(RankProcess* process) {
  if (mine_) {
    const std::optional<ProcessEnd> end = process->Reap();
    if (!end.has_value()) return false;
    // So a shell says it of what it has run; other codes above 128 are programs' own.
    const bool shell_says = end->code == 128 + SIGKILL || end->code == 128 + SIGTERM;
    const int signal = end->signal == 0 && shell_says ? end->code - 128 : end->signal;
    if (signal != 0) {
      return absl::UnavailableError(absl::StrCat("the job's setup was killed by signal ", signal));
    }
    if (end->code != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the job's setup exited with code ", end->code));
    }
    const std::string life = LifeOfHost();
    const UniqueFd done(::open(done_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!done.valid() ||
        ::write(done.get(), life.data(), life.size()) != static_cast<ssize_t>(life.size())) {
      return ErrnoStatus(errno, absl::StrCat("cannot write ", done_path_));
    }
    lock_.reset();
    return true;
  }
  if (!lock_.valid()) {
    lock_.reset(::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock_.valid()) return ErrnoStatus(errno, absl::StrCat("cannot write ", lock_path_));
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      // A server of locks may be there later; a file system without any stays without.
      const bool lacks = errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL;
      const std::string why = absl::StrCat(LockError(lock_path_, errno).message(),
                                           ": keep runs in a folder that has them (--runs-dir)");
      return lacks ? absl::FailedPreconditionError(why) : absl::UnavailableError(why);
    }
    SayWhoHasIt();
    return false;
  }
  if (ReadText(done_path_) == LifeOfHost()) {
    lock_.reset();
    return true;
  }
  // For those who wait; without it they say no number.
  const std::string pid = absl::StrCat(::getpid(), "\n");
  (void)!::ftruncate(lock_.get(), 0);
  (void)!::pwrite(lock_.get(), pid.data(), pid.size(), 0);
  if (absl::Status started = process->Start({"/bin/sh", "-c", command_}, {}, {}); !started.ok()) {
    return started;
  }
  mine_ = true;
  return false;
}

}  // namespace lockstep::worker
