// SPDX-License-Identifier: Apache-2.0
// The part of a run over several hosts on those that have no coordinator: this host's workers, for
// as long as the job runs. Started before or after the host with node rank 0.
// Thread-safety: call once per process, from its main thread.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_AS_GUEST_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_AS_GUEST_H_

#include "launcher/cli/arguments.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

// Returns the exit code: the job's; kExitNoCoordinator when the host with the coordinator does not
// appear within the job's start_timeout, or goes: then the workers save their state first, where
// the job has checkpoints. A signal takes this host out of the run, which goes on without it where
// the job allows that. REQUIRES: args.rendezvous.
int RunAsGuest(const RunArgs& args, Spawner* spawner);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_AS_GUEST_H_
