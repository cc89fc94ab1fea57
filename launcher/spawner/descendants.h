// SPDX-License-Identifier: Apache-2.0
// Ends every process that descends from this one and was not waited for.
// Thread-safety: for a process that starts no others meanwhile.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_DESCENDANTS_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_DESCENDANTS_H_

#include "absl/time/time.h"

namespace lockstep::launcher {

// Kills all children of the calling process with SIGKILL and reaps them, again and again, until
// none is left: in a process that is a subreaper (PR_SET_CHILD_SUBREAPER), the orphans that a child
// leaves become children in turn, so nothing escapes, not even a daemon with a session of its own.
// Returns whether none was left before `timeout`. Blocks.
bool KillDescendants(absl::Duration timeout);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_DESCENDANTS_H_
