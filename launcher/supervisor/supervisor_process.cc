// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/supervisor_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/fd.h"
#include "launcher/agent/run_disk.h"
#include "launcher/spawner/child_table.h"
#include "launcher/supervisor/kept_output.h"
#include "launcher/supervisor/wire.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {
namespace {

constexpr int kListenFd = 3;
constexpr int kSetupFd = 4;
constexpr int kProgramFd = 5;
constexpr absl::Duration kKillTimeout = absl::Seconds(10);
// Of an agent that has it started, until it speaks.
constexpr absl::Duration kFirstAgent = absl::Seconds(30);
// How soon a message is tried again that could not be sent, as for want of a descriptor.
constexpr absl::Duration kTellAgain = absl::Milliseconds(100);
// How long one that is through waits for a disk that does not answer.
constexpr absl::Duration kDiskPatience = absl::Minutes(1);

// A process that was started, until it is forgotten.
struct Child {
  KeptProcess kept;  // without lines
  std::unique_ptr<KeptOutput> output;
  std::vector<UniqueFd> others;  // that were kept beside its pipes and its log
  absl::Duration grace;
  absl::Time kill_at = absl::InfiniteFuture();
  bool running() const { return !kept.has_ended(); }
};

// Returns whether it is the worker program that is to be started. Agents from before they said so
// give that alone such an argument.
bool IsWorkerProgram(const StartProcess& start) {
  if (start.argv().empty()) return false;
  return start.worker_program() ||
         (start.argv_size() > 1 && absl::StartsWith(start.argv(1), "--bootstrap-fd="));
}

class SupervisorProcess {
 public:
  bool Init();
  void Serve();
  // Returns whether all that its processes printed is in their logs, as far as these take it; else
  // a disk does not answer.
  bool End();

 private:
  struct Message {
    SupervisorReport report;
    std::vector<UniqueFd> fds;
  };

  void HandleSignals();
  void Accept();
  void CloseAgent();
  // Reads one command; false when there is none.
  bool ReadCommand();
  void Handle(const SupervisorCommand& command, std::vector<UniqueFd> fds);
  void Greet(int version);
  void Start(const StartProcess& start, std::vector<UniqueFd> fds);
  void SendNext(absl::Time now);
  // A log is among its descriptors, and also a close may wait for the disk.
  void CloseLater(Message message);
  void Tell(SupervisorReport report, std::vector<UniqueFd> fds = {});
  // Does what time asks for; returns when it asks again.
  absl::Time Settle(absl::Time now);
  void EndChildren(const std::string& why);
  void EndChild(uint64_t id, Child& child);
  void SayEnding();
  bool Idle() const { return agent_.valid() ? leaving_ : greeted_once_; }
  bool has_agent() const { return agent_.valid() && greeted_; }

  UniqueFd listen_, program_, signals_, agent_;
  UniqueFd room_;  // readable: what somebody printed may be read again
  SupervisorSetup setup_;
  absl::Duration orphan_grace_;
  bool greeted_ = false;
  bool greeted_once_ = false;
  bool leaving_ = false;
  bool ending_ = false;
  std::string why_ending_;
  absl::Time alone_until_;  // without an agent
  ChildTable table_;
  std::unique_ptr<RunDisk> disk_;  // of all logs: one job's are in one folder
  std::map<uint64_t, Child> children_;
  std::deque<Message> outgoing_;
  bool agent_listens_ = true;  // false: it is gone, which is seen when it is read from
  absl::Time tell_again_ = absl::InfinitePast();  // nothing is sent before
};

bool SupervisorProcess::Init() {
  listen_.reset(kListenFd);
  const UniqueFd setup(kSetupFd);
  program_.reset(kProgramFd);
  for (const int fd : {kListenFd, kSetupFd, kProgramFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (!ReadMemoryFile(setup.get(), &setup_).ok()) return false;
  char magic[4] = {};
  // A script is found by its path alone.
  if (::pread(program_.get(), magic, 4, 0) != 4 || std::string(magic, 4) != "\177ELF") {
    program_.reset();
  }
  orphan_grace_ = absl::Nanoseconds(setup_.orphan_grace_nanos());
  alone_until_ = Clock::Real()->Now() + std::max(orphan_grace_, kFirstAgent);
  signals_ = BecomeParent("supervisor", SIGTERM);
  room_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals_.valid() || !room_.valid()) return false;
  disk_ = std::make_unique<RunDisk>();
  return true;
}

void SupervisorProcess::Serve() {
  while (!children_.empty() || !Idle()) {
    const absl::Time now = Clock::Real()->Now();
    const absl::Time next = Settle(now);
    if (ending_ && !has_agent() && table_.empty()) return;
    if (!greeted_once_ && !agent_.valid() && now >= alone_until_) return;
    std::vector<pollfd> fds = {{listen_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    const bool tells = agent_listens_ && !outgoing_.empty() && now >= tell_again_;
    const short events = static_cast<short>(tells ? POLLIN | POLLOUT : POLLIN);
    fds.push_back({agent_.get(), events, 0});  // -1 is left out
    fds.push_back({room_.get(), POLLIN, 0});
    const size_t first_pipe = fds.size();
    std::vector<std::pair<KeptOutput*, int>> pipes;
    if (!has_agent()) {
      for (const auto& [id, child] : children_) {
        if (!child.output->has_room()) continue;
        for (int stream = 0; stream < 2; ++stream) {
          if (child.output->fd(stream) < 0) continue;
          pipes.emplace_back(child.output.get(), stream);
          fds.push_back({child.output->fd(stream), POLLIN, 0});
        }
      }
    }
    const double wait = std::clamp(absl::ToDoubleMilliseconds(next - now) + 1, 0.0, 3.6e6);
    if (::poll(fds.data(), fds.size(), static_cast<int>(wait)) < 0) continue;
    for (size_t i = 0; i < pipes.size(); ++i) {
      if (fds[first_pipe + i].revents != 0) pipes[i].first->Read(pipes[i].second);
    }
    if (fds[3].revents != 0) {
      uint64_t count;
      (void)!::read(room_.get(), &count, sizeof(count));
    }
    if (fds[1].revents != 0) HandleSignals();
    if ((fds[2].revents & POLLOUT) != 0) SendNext(now);
    if ((fds[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !ReadCommand()) CloseAgent();
    if (fds[0].revents != 0) Accept();
  }
}

void SupervisorProcess::HandleSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTERM) EndChildren("its supervisor was told to end");
  }
  for (const SpawnerEvent& event : table_.Reap()) {
    const auto found = children_.find(event.id);
    if (found == children_.end()) continue;
    ProcessEnded& ended = *found->second.kept.mutable_ended();
    ended.set_id(event.id);
    ended.set_exit_code(event.exit_code);
    ended.set_signal(event.signal);
    ended.set_peak_rss_bytes(event.peak_rss_bytes);
    ended.set_monotonic_nanos(event.monotonic_nanos);
    SupervisorReport report;
    *report.mutable_ended() = ended;
    Tell(std::move(report));
  }
}

void SupervisorProcess::Accept() {
  UniqueFd socket(::accept4(listen_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid() || !IsOwnUser(socket.get())) return;
  if (agent_.valid()) {
    // What the agent before has said counts; it is gone, or replaced.
    pollfd more{agent_.get(), POLLIN, 0};
    while (agent_.valid() && ::poll(&more, 1, 0) > 0 && (more.revents & POLLIN) != 0) {
      if (!ReadCommand()) break;
    }
    CloseAgent();
  }
  agent_ = std::move(socket);
}

void SupervisorProcess::CloseAgent() {
  agent_.reset();
  for (Message& message : outgoing_) {
    if (message.report.has_kept()) {
      const auto found = children_.find(message.report.kept().id());
      if (found != children_.end()) found->second.output->TakeBack(message.report.kept());
    }
    CloseLater(std::move(message));
  }
  outgoing_.clear();
  agent_listens_ = true;
  tell_again_ = absl::InfinitePast();
  if (greeted_) alone_until_ = Clock::Real()->Now() + orphan_grace_;
  greeted_ = false;
}

bool SupervisorProcess::ReadCommand() {
  SupervisorCommand command;
  absl::StatusOr<std::vector<UniqueFd>> fds = ReceiveMessage(agent_.get(), &command);
  if (!fds.ok()) return false;
  Handle(command, *std::move(fds));
  return true;
}

void SupervisorProcess::Handle(const SupervisorCommand& command, std::vector<UniqueFd> fds) {
  if (command.has_greeting()) return Greet(command.greeting().version());
  if (!greeted_) return;
  switch (command.command_case()) {
    case SupervisorCommand::kStart:
      return Start(command.start(), std::move(fds));
    case SupervisorCommand::kSignal: {
      const auto found = children_.find(command.signal().id());
      if (found == children_.end() || !found->second.running()) return;
      found->second.kept.set_signalled(true);
      return table_.Signal(command.signal().id(), command.signal().signal());
    }
    case SupervisorCommand::kForget: {
      const auto found = children_.find(command.forget().id());
      if (found != children_.end() && !found->second.running()) children_.erase(found);
      return;
    }
    case SupervisorCommand::kPartial: {
      const auto found = children_.find(command.partial().id());
      if (found == children_.end()) return;
      for (const UnloggedLines& unlogged : command.partial().unlogged()) {
        found->second.output->TakeUnlogged(unlogged.is_stderr() ? 1 : 0, unlogged.lines());
      }
      found->second.output->Begin(0, command.partial().out());
      return found->second.output->Begin(1, command.partial().err());
    }
    case SupervisorCommand::kLeave:
      leaving_ = true;
      return;
    default:
      return;  // of a newer agent
  }
}

void SupervisorProcess::Greet(int version) {
  SupervisorReport report;
  SupervisorReport::Welcome& welcome = *report.mutable_welcome();
  welcome.set_version(kSupervisorVersion);
  welcome.set_job_id(setup_.job_id());
  welcome.set_pid(::getpid());
  if (version < kOldestSupervisorVersion) {
    welcome.set_refused(absl::StrCat("it serves agents that speak version ",
                                     kOldestSupervisorVersion, " or newer of its protocol, not ",
                                     version));
    return Tell(std::move(report));
  }
  greeted_ = greeted_once_ = true;
  Tell(std::move(report));
  for (auto& [id, child] : children_) {
    SupervisorReport told;
    *told.mutable_kept() = child.kept;
    std::vector<UniqueFd> fds;
    for (int stream = 0; stream < 2; ++stream) {
      const int fd = child.output->fd(stream);
      fds.emplace_back(fd >= 0 ? ::fcntl(fd, F_DUPFD_CLOEXEC, 0)
                               : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    const int log = child.output->log();
    fds.emplace_back(log >= 0 ? ::fcntl(log, F_DUPFD_CLOEXEC, 0)
                              : ::open("/dev/null", O_WRONLY | O_CLOEXEC));
    for (const UniqueFd& other : child.others) {
      fds.emplace_back(::fcntl(other.get(), F_DUPFD_CLOEXEC, 0));
    }
    child.output->HandOver(told.mutable_kept());
    Tell(std::move(told), std::move(fds));
  }
  SupervisorReport all;
  all.mutable_all_said();
  Tell(std::move(all));
  if (ending_) SayEnding();
}

void SupervisorProcess::SayEnding() {
  SupervisorReport report;
  report.mutable_ending();
  Tell(std::move(report));
}

void SupervisorProcess::Start(const StartProcess& start, std::vector<UniqueFd> fds) {
  const size_t kept = static_cast<size_t>(std::max(0, start.kept()));
  if (kept < 3 || fds.size() < kept + 2) return;  // no agent says so
  std::vector<UniqueFd> others;
  std::move(fds.end() - static_cast<std::ptrdiff_t>(kept), fds.end(), std::back_inserter(others));
  fds.resize(fds.size() - kept);

  SpawnerCommand command;
  command.id = start.id();
  command.argv.assign(start.argv().begin(), start.argv().end());
  command.set_env.assign(start.set_env().begin(), start.set_env().end());
  command.unset_env.assign(start.unset_env().begin(), start.unset_env().end());
  command.cwd = start.cwd();
  command.uid = start.uid();
  command.gid = start.gid();
  command.groups.assign(start.groups().begin(), start.groups().end());
  const bool pinned = program_.valid() && IsWorkerProgram(start);
  if (pinned) command.argv[0] = setup_.program();  // this agent's may lie elsewhere
  const SpawnerEvent event = table_.Start(command, std::move(fds), pinned ? program_.get() : -1);
  SupervisorReport report;
  if (event.kind == SpawnerEvent::Kind::kFailed) {
    ProcessNotStarted& failed = *report.mutable_not_started();
    failed.set_id(event.id);
    failed.set_error_number(event.error_number);
    failed.set_failed_call(event.failed_call);
    return Tell(std::move(report));
  }
  Child& child = children_[event.id];
  child.kept.set_id(event.id);
  child.kept.set_pid(event.pid);
  child.kept.set_note(start.note());
  child.grace = absl::Nanoseconds(start.grace_nanos());
  child.output = std::make_unique<KeptOutput>(std::move(others[0]), std::move(others[1]),
                                              std::move(others[2]), disk_.get(), [this] {
                                                const uint64_t one = 1;
                                                (void)!::write(room_.get(), &one, sizeof(one));
                                              });
  others.erase(others.begin(), others.begin() + 3);
  child.others = std::move(others);
  report.mutable_started()->set_id(event.id);
  report.mutable_started()->set_pid(event.pid);
  Tell(std::move(report));
  if (ending_) EndChild(event.id, child);  // it was asked for before that was known
}

void SupervisorProcess::Tell(SupervisorReport report, std::vector<UniqueFd> fds) {
  if (agent_.valid()) outgoing_.push_back({std::move(report), std::move(fds)});
}

// One at a time, when the socket has room: the agent may be blocked sending to here.
void SupervisorProcess::SendNext(absl::Time now) {
  if (outgoing_.empty()) return;
  Message message = std::move(outgoing_.front());
  outgoing_.pop_front();
  std::vector<int> fds;
  for (const UniqueFd& fd : message.fds) fds.push_back(fd.get());
  const absl::Status sent = SendMessage(agent_.get(), message.report, fds);
  if (sent.ok()) return CloseLater(std::move(message));
  outgoing_.push_front(std::move(message));
  if (absl::IsUnavailable(sent)) {
    agent_listens_ = false;  // it is gone without that, too; what it has said is still read
  } else {
    tell_again_ = now + kTellAgain;  // an agent that waits for it in vain goes, and says so
  }
}

void SupervisorProcess::CloseLater(Message message) {
  if (message.fds.empty()) return;
  disk_->Do([fds = std::make_shared<std::vector<UniqueFd>>(std::move(message.fds))] {});
}

absl::Time SupervisorProcess::Settle(absl::Time now) {
  if (!has_agent() && now >= alone_until_) {
    EndChildren(
        absl::StrCat("no agent has come back within ", absl::FormatDuration(orphan_grace_)));
  }
  absl::Time next = has_agent() || ending_ ? absl::InfiniteFuture() : alone_until_;
  if (!outgoing_.empty() && now < tell_again_) next = std::min(next, tell_again_);
  for (auto& [id, child] : children_) {
    if (!child.running()) continue;
    if (child.kill_at <= now) {
      table_.Signal(id, SIGKILL);
      child.kill_at = absl::InfiniteFuture();
    }
    next = std::min(next, child.kill_at);
  }
  return next;
}

void SupervisorProcess::EndChildren(const std::string& why) {
  if (ending_) return;
  ending_ = true;
  why_ending_ = why;
  SayEnding();
  for (auto& [id, child] : children_) {
    if (child.running()) EndChild(id, child);
  }
}

void SupervisorProcess::EndChild(uint64_t id, Child& child) {
  child.output->AddLine(absl::StrCat("lockstep: ", why_ending_, ": this worker is ended"));
  child.kept.set_signalled(true);
  child.kill_at = Clock::Real()->Now() + child.grace;
  table_.Signal(id, SIGTERM);
}

bool SupervisorProcess::End() {
  table_.KillAll(kKillTimeout);
  ::unlink(setup_.socket().c_str());
  for (auto& [id, child] : children_) {  // what came last, also where much waits for the log
    child.output->Read(0);
    child.output->Read(1);
  }
  children_.clear();
  while (!disk_->Settle(kDiskPatience)) {
    if (disk_->stands(kDiskPatience)) return false;
  }
  return true;
}

}  // namespace

int RunSupervisorProcess() {
  SupervisorProcess process;
  if (!process.Init()) return 1;
  process.Serve();
  if (!process.End()) ::_exit(0);  // the thread that waits for the disk ends with the process
  return 0;
}

}  // namespace lockstep::launcher
