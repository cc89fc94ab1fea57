// SPDX-License-Identifier: Apache-2.0
// Who looks after this process. A service manager (systemd) that started it is told how far it is,
// by the protocol of sd_notify(3): "READY=1" when it serves, "STATUS=..." a line for people,
// "STOPPING=1" when it ends. Thread-safety: may be called from any thread; the environment must not
// be changed meanwhile.
#ifndef LOCKSTEP_COMMON_SERVICE_MANAGER_H_
#define LOCKSTEP_COMMON_SERVICE_MANAGER_H_

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Sends `state` to the socket that $NOTIFY_SOCKET names; nothing happens without one. Does not
// block: a manager that does not listen misses it.
void TellServiceManager(absl::string_view state);

// How a process was started.
struct Origin {
  pid_t pid = 0;
  pid_t parent = 0;              // 0: one that is outside of its PID namespace
  std::string init;              // the name of its PID namespace's first process
  bool of_host = false;          // its PID namespace is the machine's first one
  bool service_manager = false;  // which says so ($INVOCATION_ID)
};

// This process's. To be asked early: a parent may end.
Origin OriginOfProcess();

// Returns whether a container, with all that runs in it, ends with such a process: it is the
// container's first one, was started into it from outside, or by an init that is there for one
// program alone (docker run --init), not by a service manager, which starts it again.
bool EndsContainer(const Origin& origin);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_SERVICE_MANAGER_H_
