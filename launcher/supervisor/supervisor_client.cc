// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/supervisor_client.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"
#include "launcher/spawner/wire.h"
#include "launcher/supervisor/wire.h"

namespace lockstep::launcher {
namespace {

// The kernel takes so long at most to end what a supervisor leaves, with all the memory that it
// has. Who is there after the first half, stopped before it could end by itself, is killed.
constexpr absl::Duration kDeathTimeout = absl::Seconds(30);

UniqueFd OpenProcess(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Waits for the process's end, until `deadline` at most. Returns whether it has ended; true where
// that cannot be known.
bool Ends(int pidfd, absl::Time deadline) {
  if (pidfd < 0) return true;
  const double wait = absl::ToDoubleMilliseconds(deadline - Clock::Real()->Now());
  pollfd fd{pidfd, POLLIN, 0};
  return ::poll(&fd, 1, static_cast<int>(std::max(0.0, wait))) != 0;
}

void SetReceiveTimeout(int socket, absl::Duration timeout) {
  const timeval value = absl::ToTimeval(timeout);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SupervisorClient>> SupervisorClient::Greet(UniqueFd socket,
                                                                          pid_t child) {
  auto client = std::unique_ptr<SupervisorClient>(new SupervisorClient(std::move(socket), child));
  client->pid_ = child;
  SupervisorCommand command;
  command.mutable_greeting()->set_version(kSupervisorVersion);
  LS_RETURN_IF_ERROR(client->Send(command, {}));
  return client;
}

SupervisorClient::~SupervisorClient() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  ::shutdown(socket_.get(), SHUT_RDWR);
  reader_.Join();
}

absl::StatusOr<std::vector<SupervisorClient::Kept>> SupervisorClient::Await(
    absl::Duration timeout) {
  std::vector<Kept> all;
  SetReceiveTimeout(socket_.get(), timeout);
  while (true) {
    SupervisorReport report;
    LS_ASSIGN_OR_RETURN(std::vector<UniqueFd> fds, ReceiveMessage(socket_.get(), &report));
    if (report.has_welcome()) {
      const SupervisorReport::Welcome& welcome = report.welcome();
      job_id_ = welcome.job_id();
      pid_ = static_cast<pid_t>(welcome.pid());
      if (!welcome.refused().empty()) return absl::FailedPreconditionError(welcome.refused());
      if (welcome.version() < kOldestSupervisorVersion) {
        return absl::FailedPreconditionError(
            absl::StrCat("it speaks version ", welcome.version(), " of its protocol, this agent ",
                         kOldestSupervisorVersion, " to ", kSupervisorVersion));
      }
    } else if (report.has_kept()) {
      all.push_back({std::move(*report.mutable_kept()), std::move(fds)});
    } else if (report.has_all_said()) {
      break;
    }
  }
  SetReceiveTimeout(socket_.get(), absl::ZeroDuration());
  return all;
}

void SupervisorClient::Adopt(const KeptProcess& process, Callbacks callbacks) {
  absl::MutexLock lock(&mu_);
  Entry& entry = entries_[process.id()];
  entry.callbacks = std::make_shared<Callbacks>(std::move(callbacks));
  entry.pid = static_cast<pid_t>(process.pid());
  entry.pidfd = OpenProcess(entry.pid);
  next_id_ = std::max<uint64_t>(next_id_, process.id() + 1);
  if (process.has_ended()) ended_before_.push_back(process.ended());
}

void SupervisorClient::Run() {
  reader_ = Thread("supervisor", [this] {
    for (const ProcessEnded& ended : ended_before_) OnEnded(ended);
    ReadReports();
  });
}

absl::StatusOr<uint64_t> SupervisorClient::Spawn(const Request& request, Callbacks callbacks) {
  LS_CHECK(!request.argv.empty() && request.stdout_fd >= 0 && request.stderr_fd >= 0);
  LS_CHECK_GE(request.legacy.fds.size(), size_t{3});
  SupervisorCommand command;
  StartProcess& start = *command.mutable_start();
  start.mutable_argv()->Add(request.argv.begin(), request.argv.end());
  start.mutable_set_env()->Add(request.set_env.begin(), request.set_env.end());
  start.mutable_unset_env()->Add(request.unset_env.begin(), request.unset_env.end());
  start.set_cwd(request.cwd);
  start.set_uid(request.uid);
  start.set_gid(request.gid);
  start.mutable_groups()->Add(request.groups.begin(), request.groups.end());
  start.set_kept(static_cast<int32_t>(request.legacy.fds.size()));
  start.set_note(request.legacy.note);
  start.set_worker_program(request.legacy.worker_program);
  start.set_grace_nanos(absl::ToInt64Nanoseconds(request.legacy.grace));
  std::vector<int> fds = {request.stdout_fd, request.stderr_fd};
  fds.insert(fds.end(), request.fds.begin(), request.fds.end());
  fds.insert(fds.end(), request.legacy.fds.begin(), request.legacy.fds.end());
  uint64_t id;
  {
    absl::MutexLock lock(&mu_);
    id = next_id_++;
    entries_[id].callbacks = std::make_shared<Callbacks>(std::move(callbacks));
  }
  start.set_id(id);
  if (absl::Status sent = Send(command, fds); !sent.ok()) {
    absl::MutexLock lock(&mu_);
    if (entries_[id].ended) return id;  // OnLost was quicker, and has called back
    entries_.erase(id);
    return sent;
  }
  return id;
}

absl::Status SupervisorClient::Kill(uint64_t id, int signal) {
  SupervisorCommand command;
  command.mutable_signal()->set_id(id);
  command.mutable_signal()->set_signal(signal);
  return Send(command, {});
}

void SupervisorClient::LeaveOutput(uint64_t id, const Output& output) {
  if (output.unlogged.empty() && output.out.empty() && output.err.empty()) return;
  SupervisorCommand command;
  PartialLines& partial = *command.mutable_partial();
  partial.set_id(id);
  for (const Output::Text& text : output.unlogged) {
    UnloggedLines& unlogged = *partial.add_unlogged();
    unlogged.set_is_stderr(text.is_stderr);
    unlogged.set_lines(text.lines);
  }
  partial.set_out(output.out);
  partial.set_err(output.err);
  // One that is gone has no agent after this one.
  Send(command, {}).IgnoreError();
}

void SupervisorClient::Forget(uint64_t id) {
  bool last;
  {
    absl::MutexLock lock(&mu_);
    if (entries_.erase(id) == 0) return;
    last = entries_.empty();
    if (last) usable_ = false;
  }
  SupervisorCommand forget, leave;
  forget.mutable_forget()->set_id(id);
  leave.mutable_leave();
  // One that is gone has forgotten everything.
  Send(forget, {}).IgnoreError();
  if (last) Send(leave, {}).IgnoreError();
}

bool SupervisorClient::usable() const {
  {
    absl::MutexLock lock(&mu_);
    if (!usable_) return false;
  }
  // Not only once the reader has come to it: the death of the worker that is to be replaced may be
  // known before.
  pollfd fd{socket_.get(), 0, 0};
  return ::poll(&fd, 1, 0) == 0;
}

bool SupervisorClient::over() const {
  absl::MutexLock lock(&mu_);
  return over_;
}

absl::Status SupervisorClient::Send(const SupervisorCommand& command, const std::vector<int>& fds) {
  absl::MutexLock lock(&send_mu_);
  const absl::Status sent = SendMessage(socket_.get(), command, fds);
  return sent.ok() ? sent
                   : absl::UnavailableError(
                         absl::StrCat("the job's supervisor is gone: ", sent.message()));
}

void SupervisorClient::ReadReports() {
  while (true) {
    SupervisorReport report;
    if (!ReceiveMessage(socket_.get(), &report).ok()) break;
    Handle(report);
  }
  OnLost();
}

void SupervisorClient::Handle(const SupervisorReport& report) {
  if (report.has_ended()) return OnEnded(report.ended());
  if (report.has_ending()) {
    absl::MutexLock lock(&mu_);
    usable_ = false;
    return;
  }
  std::shared_ptr<Callbacks> callbacks;
  if (report.has_started()) {
    const pid_t pid = static_cast<pid_t>(report.started().pid());
    {
      absl::MutexLock lock(&mu_);
      const auto found = entries_.find(report.started().id());
      if (found == entries_.end()) return;
      found->second.pid = pid;
      found->second.pidfd = OpenProcess(pid);
      callbacks = found->second.callbacks;
    }
    if (callbacks->on_started) callbacks->on_started(pid);
  } else if (report.has_not_started()) {
    const ProcessNotStarted& failed = report.not_started();
    {
      absl::MutexLock lock(&mu_);
      const auto found = entries_.find(failed.id());
      if (found == entries_.end()) return;
      found->second.ended = true;
      callbacks = found->second.callbacks;
    }
    if (callbacks->on_failed) {
      callbacks->on_failed(FailureOf(failed.error_number(), failed.failed_call()));
    }
  }
}

void SupervisorClient::OnEnded(const ProcessEnded& ended) {
  std::shared_ptr<Callbacks> callbacks;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(ended.id());
    if (found == entries_.end() || std::exchange(found->second.ended, true)) return;
    callbacks = found->second.callbacks;
  }
  if (!callbacks->on_exit) return;
  callbacks->on_exit({.code = ended.exit_code(),
                      .signal = ended.signal(),
                      .peak_rss_bytes = ended.peak_rss_bytes(),
                      .time = Clock::Real()->Now() -
                              absl::Nanoseconds(MonotonicNanos() - ended.monotonic_nanos())});
}

void SupervisorClient::OnLost() {
  struct Left {
    uint64_t id;
    int pidfd;
    pid_t pid;
  };
  std::vector<Left> left;
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    usable_ = false;
    // Nobody takes these away before they have ended, as far as is known here.
    for (const auto& [id, entry] : entries_) {
      if (!entry.ended) left.push_back({id, entry.pidfd.get(), entry.pid});
    }
  }
  if (child_ > 0) ::waitpid(child_, nullptr, 0);
  const absl::Time deadline = Clock::Real()->Now() + kDeathTimeout;
  for (const Left& process : left) {
    if (!Ends(process.pidfd, deadline - kDeathTimeout / 2)) {
      ::syscall(SYS_pidfd_send_signal, process.pidfd, SIGKILL, nullptr, 0);
      Ends(process.pidfd, deadline);
    }
    // It came to this process, where the supervisor was its child.
    if (process.pid > 0) ::waitpid(process.pid, nullptr, WNOHANG);
    ProcessEnded ended;
    ended.set_id(process.id);
    ended.set_signal(SIGKILL);
    ended.set_monotonic_nanos(MonotonicNanos());
    OnEnded(ended);
  }
  absl::MutexLock lock(&mu_);
  over_ = true;
}

}  // namespace lockstep::launcher
