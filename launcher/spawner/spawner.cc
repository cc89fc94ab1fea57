// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawner/spawner.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fd_passing.h"
#include "common/memory_file.h"
#include "common/status.h"
#include "launcher/spawner/spawner_process.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kInlineBytes = 60 << 10;  // longer commands travel in a memfd

}  // namespace

absl::StatusOr<std::unique_ptr<Spawner>> Spawner::Fork() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return ErrnoStatus(errno, "socketpair for the spawner");
  }
  UniqueFd ours(sockets[0]), theirs(sockets[1]);
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return ErrnoStatus(
        errno,
        "cannot fork the spawner, as the number of processes or the memory is at its "
        "limit (ulimit -u)");
  }
  if (pid == 0) {
    ours.reset();
    RunSpawnerProcess(theirs.get(), launcher);
  }
  // Should the spawner itself be killed, its orphans come to the launcher.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return std::unique_ptr<Spawner>(new Spawner(std::move(ours), pid));
}

Spawner::~Spawner() {
  Thread reader;
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
    callbacks_.clear();
    reader = std::move(reader_);
  }
  ::shutdown(socket_.get(), SHUT_RDWR);
  reader.Join();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<uint64_t> Spawner::Spawn(const Request& request, Callbacks callbacks) {
  LS_CHECK(!request.argv.empty());
  LS_CHECK_EQ(request.stdout_fd < 0, request.stderr_fd < 0);
  SpawnerCommand command;
  command.kind = SpawnerCommand::Kind::kSpawn;
  command.argv = request.argv;
  command.set_env = request.set_env;
  command.unset_env = request.unset_env;
  command.cwd = request.cwd;
  command.uid = request.uid;
  command.gid = request.gid;
  command.groups = request.groups;
  command.keep_output = request.stdout_fd < 0;
  std::vector<int> fds;
  if (!command.keep_output) fds = {request.stdout_fd, request.stderr_fd};
  fds.insert(fds.end(), request.fds.begin(), request.fds.end());
  {
    absl::MutexLock lock(&mu_);
    command.id = next_id_++;
    callbacks_[command.id] = std::make_shared<Callbacks>(std::move(callbacks));
    if (!reader_.running()) reader_ = Thread("spawner-events", [this] { ReadEvents(); });
  }
  if (absl::Status sent = Send(command, fds); !sent.ok()) {
    absl::MutexLock lock(&mu_);
    callbacks_.erase(command.id);
    return sent;
  }
  return command.id;
}

absl::Status Spawner::Kill(uint64_t id, int signal) {
  SpawnerCommand command;
  command.kind = SpawnerCommand::Kind::kKill;
  command.id = id;
  command.signal = signal;
  return Send(command, {});
}

absl::Status Spawner::RemoveFileAtEnd(const std::string& path) {
  SpawnerCommand command;
  command.kind = SpawnerCommand::Kind::kRemoveFile;
  command.argv = {path};
  return Send(command, {});
}

absl::Status Spawner::RemoveDirAtEnd(const std::string& path) {
  SpawnerCommand command;
  command.kind = SpawnerCommand::Kind::kRemoveDir;
  command.argv = {path};
  return Send(command, {});
}

void Spawner::SetOnLost(std::function<void()> on_lost) {
  absl::MutexLock lock(&mu_);
  on_lost_ = std::move(on_lost);
}

bool Spawner::lost() const {
  absl::MutexLock lock(&mu_);
  return lost_;
}

absl::Status Spawner::Send(const SpawnerCommand& command, const std::vector<int>& fds) {
  const std::string text = EncodeCommand(command);
  absl::MutexLock lock(&send_mu_);
  if (text.size() <= kInlineBytes) return Annotate(SendFds(socket_.get(), text, fds), "spawner");
  LS_ASSIGN_OR_RETURN(UniqueFd body, MemoryFile("lockstep-command", text));
  std::vector<int> with_body = fds;
  with_body.push_back(body.get());
  return Annotate(SendFds(socket_.get(), "", with_body), "spawner");
}

void Spawner::ReadEvents() {
  while (true) {
    SpawnerEvent event;
    const ssize_t n = ::recv(socket_.get(), &event, sizeof(event), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof(event)) break;
    HandleEvent(event);
  }
  std::function<void()> on_lost;
  {
    absl::MutexLock lock(&mu_);
    lost_ = !ending_;
    if (lost_) on_lost = on_lost_;
  }
  if (on_lost) on_lost();
}

void Spawner::HandleEvent(const SpawnerEvent& event) {
  std::shared_ptr<Callbacks> callbacks;
  {
    absl::MutexLock lock(&mu_);
    const auto it = callbacks_.find(event.id);
    if (it == callbacks_.end()) return;
    callbacks = it->second;
    if (event.kind != SpawnerEvent::Kind::kStarted) callbacks_.erase(it);
  }
  switch (event.kind) {
    case SpawnerEvent::Kind::kStarted:
      if (callbacks->on_started) callbacks->on_started(event.pid);
      break;
    case SpawnerEvent::Kind::kFailed:
      if (callbacks->on_failed) {
        callbacks->on_failed(FailureOf(event.error_number, event.failed_call));
      }
      break;
    case SpawnerEvent::Kind::kExited:
      if (callbacks->on_exit) {
        callbacks->on_exit({.code = event.exit_code,
                            .signal = event.signal,
                            .peak_rss_bytes = event.peak_rss_bytes,
                            .time = Clock::Real()->Now() -
                                    absl::Nanoseconds(MonotonicNanos() - event.monotonic_nanos)});
      }
      break;
  }
}

}  // namespace lockstep::launcher
