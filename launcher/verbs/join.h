// SPDX-License-Identifier: Apache-2.0
// launcher join: makes this host a node of a running coordinator.
// Thread-safety: called by main.
#ifndef LOCKSTEP_LAUNCHER_VERBS_JOIN_H_
#define LOCKSTEP_LAUNCHER_VERBS_JOIN_H_

#include "launcher/cli/arguments.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

// Serves until a signal (the workers get SIGTERM and their grace; a second signal kills them). A
// coordinator that refuses this node, or is away, is tried again. Blocks; returns the exit code.
int RunJoin(const JoinArgs& args, Spawner* spawner);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_JOIN_H_
