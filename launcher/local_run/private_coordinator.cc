// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/private_coordinator.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "launcher/agent/host.h"
#include "launcher/follow/text.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMaxFolder = 80;  // a Unix socket's path has 107 characters

// A new folder of mode 0700 for the socket.
absl::StatusOr<std::string> MakeSocketFolder() {
  int why = 0;
  std::string tried;
  for (const char* variable : {"XDG_RUNTIME_DIR", "TMPDIR", ""}) {
    const char* value = variable[0] == '\0' ? "/tmp" : std::getenv(variable);
    if (value == nullptr || value[0] != '/') continue;
    std::string folder = absl::StrCat(value, "/lockstep-XXXXXX");
    if (folder.size() > kMaxFolder) continue;
    if (::mkdtemp(folder.data()) != nullptr) return folder;
    why = errno;
    absl::StrAppend(&tried, tried.empty() ? "" : ", ", value);
  }
  return ErrnoStatus(why, absl::StrCat("cannot make a folder for the coordinator's socket in ",
                                       tried, " (set TMPDIR to one that you may write to)"));
}

}  // namespace

std::string HowItEnded(const Spawner::Exit& exit) {
  if (exit.signal != 0) return absl::StrCat("was killed by ", SignalName(exit.signal));
  return absl::StrCat("exited with code ", exit.code);
}

absl::StatusOr<std::unique_ptr<PrivateCoordinator>> PrivateCoordinator::Start(
    Spawner* spawner, std::function<void(const std::string& how)> on_exit) {
  LS_ASSIGN_OR_RETURN(const std::string program,
                      FindProgram("coordinator", "LOCKSTEP_COORDINATOR_BIN"));
  LS_ASSIGN_OR_RETURN(const std::string folder, MakeSocketFolder());
  const std::string socket = absl::StrCat(folder, "/sock");
  LS_RETURN_IF_ERROR(spawner->RemoveDirAtEnd(folder));
  LS_RETURN_IF_ERROR(spawner->RemoveFileAtEnd(socket));
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe for the coordinator");
  UniqueFd write_end(fds[1]);
  std::unique_ptr<PrivateCoordinator> coordinator(new PrivateCoordinator());
  coordinator->ready_.reset(fds[0]);
  coordinator->address_ = absl::StrCat("unix:", socket);

  Spawner::Request request;
  request.argv = {program, "--listen", coordinator->address_, "--ready-fd", "3", "--parent-death"};
  // Its messages are the launcher's; what it says while all is well is not for the user.
  if (std::getenv("LOCKSTEP_LOG") == nullptr) request.set_env = {"LOCKSTEP_LOG=warning"};
  request.stdout_fd = STDERR_FILENO;
  request.stderr_fd = STDERR_FILENO;
  request.fds = {write_end.get()};
  Spawner::Callbacks callbacks;
  callbacks.on_exit = [on_exit](const Spawner::Exit& exit) { on_exit(HowItEnded(exit)); };
  callbacks.on_failed = [on_exit](const absl::Status& why) {
    on_exit(absl::StrCat("could not be started: ", std::string(why.message())));
  };
  LS_RETURN_IF_ERROR(spawner->Spawn(request, std::move(callbacks)).status());
  return coordinator;
}

absl::Status PrivateCoordinator::WaitReady(absl::Duration timeout, int interrupt_fd) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    pollfd fds[2] = {{ready_.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the private coordinator was not ready within ", absl::FormatDuration(timeout)));
    }
    if (::poll(fds, 2, static_cast<int>(left)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "poll");
    }
    if (fds[1].revents != 0) return absl::CancelledError("interrupted");
    if (fds[0].revents == 0) continue;
    char line[256];
    const ssize_t n = ::read(ready_.get(), line, sizeof(line));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the private coordinator ended before it was ready");
    return absl::OkStatus();
  }
}

}  // namespace lockstep::launcher
