// SPDX-License-Identifier: Apache-2.0
// One process start by vfork and exec.
// Thread-safety: for one thread of a process, the end of which is the process's for its children.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_CHILD_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_CHILD_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/fd.h"
#include "launcher/spawner/wire.h"

namespace lockstep::launcher {

// The variables of the agent's environment that are its own: the token that it shows, and what the
// service manager gave it. Nothing that it starts has them. Thread-safe.
const std::vector<std::string>& AgentVariables();
// Those of the token alone: what a service manager gave a launcher that runs its user's job is the
// job's. Thread-safe.
const std::vector<std::string>& TokenVariables();

struct ChildStart {
  pid_t pid = -1;                // -1: not started
  int error_number = 0;          // why not
  const char* failed_call = "";  // and what failed; at most 19 characters
};

// Starts `command` as the leader of its own process group: killed with SIGKILL when the spawner
// dies, signals as at a program's start (SIGXFSZ ignored), stdin as the spawner's, `fds` as
// descriptors 1, 2, 3, ... (from 3 on with keep_output), nothing else open. Blocks until the exec
// has succeeded or failed. `program`: a descriptor of the program to run, whatever argv[0] names by
// then; -1: what argv[0] names.
ChildStart StartChild(const SpawnerCommand& command, std::vector<UniqueFd> fds, int program = -1);

// Starts `program` as the leader of a session of its own that nobody's death ends, with `fds` as
// descriptors 0, 1, 2, 3, ..., nothing else open, and without AgentVariables(). From any thread.
ChildStart StartDetached(int program, const std::vector<std::string>& argv,
                         std::vector<UniqueFd> fds);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_CHILD_H_
