// SPDX-License-Identifier: Apache-2.0
#include "common/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "common/clock.h"

namespace lockstep {

std::vector<pid_t> ChildProcesses() {
  // A thread's list has the children that it started, and adopted ones are in any.
  std::vector<pid_t> children;
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return children;
  while (const dirent* entry = ::readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/children");
    pid_t pid;
    while (file >> pid) children.push_back(pid);
  }
  ::closedir(tasks);
  return children;
}

bool KillDescendants(absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  while (true) {
    // A child is not reaped by anyone else, so its number cannot have passed to another process.
    for (const pid_t pid : ChildProcesses()) ::kill(pid, SIGKILL);
    pid_t reaped;
    do {
      reaped = ::waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0);
    if (reaped < 0 && errno == ECHILD) return true;
    if (Clock::Real()->Now() > deadline) return false;
    Clock::Real()->Sleep(absl::Milliseconds(1));
  }
}

}  // namespace lockstep
