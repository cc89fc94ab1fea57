// SPDX-License-Identifier: Apache-2.0
// A job on this machine, from the command line to the exit code: a private coordinator, an agent
// and a client, which speak to each other as they would over a network. Thread-safety: called by
// main.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_HERE_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_HERE_H_

#include "launcher/cli/arguments.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

// Blocks until the job has ended and everything that it started is gone, or is about to be killed
// by the spawner's end. Returns the exit code.
int RunHere(const RunArgs& args, Spawner* spawner);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_HERE_H_
