// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawner/spawner_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/descendants.h"
#include "common/fd.h"
#include "common/fd_passing.h"
#include "launcher/spawner/child.h"
#include "launcher/spawner/wire.h"

namespace lockstep::launcher {
namespace {

// Sent to the spawner by the kernel when the launcher dies.
constexpr int kLauncherDied = SIGTERM;
constexpr absl::Duration kKillTimeout = absl::Seconds(10);

class SpawnerProcess {
 public:
  explicit SpawnerProcess(int socket) : socket_(socket) {}

  void Init(pid_t launcher);
  // Until the launcher is gone.
  void Serve();
  void End();

 private:
  void HandleMessage(FdMessage message);
  void HandleSpawn(const SpawnerCommand& command, std::vector<UniqueFd> fds);
  void Reap();
  // What was adopted here came of a process that has ended: it ends too.
  void KillAdopted();
  void Report(const SpawnerEvent& event) { outgoing_.push_back(event); }
  // Sends what the socket takes; never blocks, since the launcher may be blocked sending to here.
  void SendReports();

  const int socket_;
  UniqueFd signals_;
  bool launcher_gone_ = false;
  std::unordered_map<pid_t, uint64_t> ids_;  // of the running children that the launcher asked for
  std::unordered_map<uint64_t, pid_t> pids_;
  std::deque<SpawnerEvent> outgoing_;
  std::vector<std::string> files_;
  std::vector<std::string> dirs_;
};

void SpawnerProcess::Init(pid_t launcher) {
  // Nothing that the launcher inherited is kept open here.
  if (socket_ > 3) ::close_range(3, static_cast<unsigned int>(socket_ - 1), 0);
  ::close_range(static_cast<unsigned int>(socket_ + 1), ~0u, 0);
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null.valid()) ::dup2(null.get(), 0);
  // Out of the terminal's foreground group: Ctrl-C is the launcher's to handle.
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  sigaddset(&handled, kLauncherDied);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  rlimit files{};  // what it starts may open as many as can be
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ::prctl(PR_SET_NAME, "spawner");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, kLauncherDied);
  launcher_gone_ = ::getppid() != launcher || !signals_.valid();
}

void SpawnerProcess::Serve() {
  while (!launcher_gone_) {
    SendReports();
    pollfd fds[2] = {{socket_, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (!outgoing_.empty()) fds[0].events |= POLLOUT;
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) {
      signalfd_siginfo info;
      while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
        launcher_gone_ |= info.ssi_signo == kLauncherDied;
      }
      Reap();
    }
    if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      absl::StatusOr<FdMessage> message = RecvFds(socket_);
      if (message.ok()) {
        HandleMessage(*std::move(message));
      } else {
        launcher_gone_ = true;
      }
    }
  }
}

void SpawnerProcess::HandleMessage(FdMessage message) {
  if (message.data.empty()) {  // too long for a message: it lies in the last descriptor
    if (message.fds.empty()) return;
    UniqueFd body = std::move(message.fds.back());
    message.fds.pop_back();
    struct stat info {};
    if (::fstat(body.get(), &info) != 0) return;
    message.data.resize(static_cast<size_t>(info.st_size));
    if (::pread(body.get(), message.data.data(), message.data.size(), 0) != info.st_size) return;
  }
  absl::StatusOr<SpawnerCommand> command = DecodeCommand(message.data);
  if (!command.ok()) return;
  switch (command->kind) {
    case SpawnerCommand::Kind::kSpawn:
      HandleSpawn(*command, std::move(message.fds));
      break;
    case SpawnerCommand::Kind::kKill:
      // Its number is still its own: it is only given back by Reap. Its group's is then too.
      if (auto it = pids_.find(command->id); it != pids_.end()) {
        ::killpg(it->second, command->signal);
      }
      break;
    case SpawnerCommand::Kind::kRemoveFile:
      files_.push_back(command->argv.at(0));
      break;
    case SpawnerCommand::Kind::kRemoveDir:
      dirs_.push_back(command->argv.at(0));
      break;
  }
}

void SpawnerProcess::HandleSpawn(const SpawnerCommand& command, std::vector<UniqueFd> fds) {
  SpawnerEvent event;
  event.id = command.id;
  event.monotonic_nanos = MonotonicNanos();
  const ChildStart start = StartChild(command, std::move(fds));
  if (start.pid < 0) {
    event.kind = SpawnerEvent::Kind::kFailed;
    event.error_number = start.error_number;
    std::strncpy(event.failed_call, start.failed_call, sizeof(event.failed_call) - 1);
  } else {
    event.kind = SpawnerEvent::Kind::kStarted;
    event.pid = start.pid;
    ids_[start.pid] = command.id;
    pids_[command.id] = start.pid;
  }
  Report(event);
}

void SpawnerProcess::Reap() {
  while (true) {
    // Looked at first and reaped last: while it is a zombie its group's number is not used again.
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const pid_t pid = info.si_pid;
    const auto it = ids_.find(pid);
    if (it != ids_.end()) ::killpg(pid, SIGKILL);  // what it left behind
    int status = 0;
    rusage usage{};
    if (::wait4(pid, &status, 0, &usage) != pid) continue;
    KillAdopted();
    if (it == ids_.end()) continue;
    SpawnerEvent event;
    event.kind = SpawnerEvent::Kind::kExited;
    event.id = it->second;
    event.pid = pid;
    if (WIFSIGNALED(status)) {
      event.signal = WTERMSIG(status);
    } else {
      event.exit_code = WEXITSTATUS(status);
    }
    event.peak_rss_bytes = static_cast<int64_t>(usage.ru_maxrss) * 1024;
    event.monotonic_nanos = MonotonicNanos();
    Report(event);
    pids_.erase(it->second);
    ids_.erase(it);
  }
}

void SpawnerProcess::KillAdopted() {
  for (const pid_t pid : ChildProcesses()) {
    if (!ids_.contains(pid)) ::kill(pid, SIGKILL);
  }
}

void SpawnerProcess::SendReports() {
  while (!outgoing_.empty()) {
    const SpawnerEvent& event = outgoing_.front();
    if (::send(socket_, &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    outgoing_.pop_front();
  }
}

void SpawnerProcess::End() {
  for (const auto& [pid, id] : ids_) ::killpg(pid, SIGKILL);
  KillDescendants(kKillTimeout);
  for (const std::string& file : files_) ::unlink(file.c_str());
  for (const std::string& dir : dirs_) ::rmdir(dir.c_str());
}

}  // namespace

void RunSpawnerProcess(int socket, pid_t launcher) {
  {
    SpawnerProcess process(socket);
    process.Init(launcher);
    process.Serve();
    process.End();
  }
  // Not exit(): what the launcher registered before the fork is the launcher's.
  ::_exit(0);
}

}  // namespace lockstep::launcher
