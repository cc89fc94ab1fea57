// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawner/child_table.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <cstring>
#include <utility>

#include "common/descendants.h"
#include "launcher/spawner/child.h"

namespace lockstep::launcher {

UniqueFd BecomeParent(const char* name, int other) {
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  sigaddset(&handled, other);
  UniqueFd signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  rlimit files{};  // what it starts may open as many as can be
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ::prctl(PR_SET_NAME, name);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return signals;
}

SpawnerEvent ChildTable::Start(const SpawnerCommand& command, std::vector<UniqueFd> fds,
                               int program) {
  SpawnerEvent event;
  event.id = command.id;
  event.monotonic_nanos = MonotonicNanos();
  const ChildStart start = StartChild(command, std::move(fds), program);
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
  return event;
}

void ChildTable::Signal(uint64_t id, int signal) {
  // Its number is still its own: it is only given back by Reap. Its group's is then too.
  if (auto it = pids_.find(id); it != pids_.end()) ::killpg(it->second, signal);
}

std::vector<SpawnerEvent> ChildTable::Reap() {
  std::vector<SpawnerEvent> events;
  while (true) {
    // Looked at first and reaped last: while it is a zombie its group's number is not used again.
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
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
    events.push_back(event);
    pids_.erase(it->second);
    ids_.erase(it);
  }
  return events;
}

void ChildTable::KillAdopted() {
  for (const pid_t pid : ChildProcesses()) {
    if (!ids_.contains(pid)) ::kill(pid, SIGKILL);
  }
}

void ChildTable::KillAll(absl::Duration timeout) {
  for (const auto& [pid, id] : ids_) ::killpg(pid, SIGKILL);
  KillDescendants(timeout);
}

}  // namespace lockstep::launcher
