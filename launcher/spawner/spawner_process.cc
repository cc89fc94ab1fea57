// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawner/spawner_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/close_descriptors.h"
#include "common/fd.h"
#include "common/fd_passing.h"
#include "launcher/spawner/child_table.h"
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
  // Sends what the socket takes; never blocks, since the launcher may be blocked sending to here.
  void SendReports();

  const int socket_;
  UniqueFd signals_;
  pid_t launcher_ = 0;
  bool launcher_gone_ = false;
  ChildTable children_;
  std::deque<SpawnerEvent> outgoing_;
  std::vector<std::string> files_;
  std::vector<std::string> dirs_;
};

void SpawnerProcess::Init(pid_t launcher) {
  // Nothing that the launcher inherited is kept open here.
  CloseDescriptors(3, socket_);
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null.valid()) ::dup2(null.get(), 0);
  // Out of the terminal's foreground group: Ctrl-C is the launcher's to handle.
  ::setpgid(0, 0);
  signals_ = BecomeParent("spawner", kLauncherDied);
  ::prctl(PR_SET_PDEATHSIG, kLauncherDied);
  launcher_ = launcher;
  launcher_gone_ = ::getppid() != launcher_ || !signals_.valid();
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
        // Others may send it too, to all processes of a session for instance.
        launcher_gone_ |= info.ssi_signo == kLauncherDied && ::getppid() != launcher_;
      }
      for (const SpawnerEvent& event : children_.Reap()) outgoing_.push_back(event);
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
      outgoing_.push_back(children_.Start(*command, std::move(message.fds)));
      break;
    case SpawnerCommand::Kind::kKill:
      children_.Signal(command->id, command->signal);
      break;
    case SpawnerCommand::Kind::kRemoveFile:
      files_.push_back(command->argv.at(0));
      break;
    case SpawnerCommand::Kind::kRemoveDir:
      dirs_.push_back(command->argv.at(0));
      break;
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
  children_.KillAll(kKillTimeout);
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
