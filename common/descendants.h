// SPDX-License-Identifier: Apache-2.0
// Ends every process that descends from this one and was not waited for.
// Thread-safety: for a process that starts no others meanwhile.
#ifndef LOCKSTEP_COMMON_DESCENDANTS_H_
#define LOCKSTEP_COMMON_DESCENDANTS_H_

#include <sys/types.h>

#include <vector>

#include "absl/time/time.h"

namespace lockstep {

// The children of this process, those that it adopted among them.
std::vector<pid_t> ChildProcesses();

// Kills all children of the calling process with SIGKILL and reaps them, again and again, until
// none is left: in a process that is a subreaper (PR_SET_CHILD_SUBREAPER), the orphans that a child
// leaves become children in turn, so nothing escapes, not even a daemon with a session of its own.
// Returns whether none was left before `timeout`. Blocks.
bool KillDescendants(absl::Duration timeout);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_DESCENDANTS_H_
