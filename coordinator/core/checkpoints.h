// SPDX-License-Identifier: Apache-2.0
// Which checkpoint of a job is its newest. They are ordered by generation and step, and one that
// comes after a newer one is not let appear: who wrote it stood still while the job went on.
// Thread-safety: pure functions of the state.
#ifndef LOCKSTEP_COORDINATOR_CORE_CHECKPOINTS_H_
#define LOCKSTEP_COORDINATOR_CORE_CHECKPOINTS_H_

#include <cstdint>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Workers and checkpoints may have seen generations that the journal does not know: it lost them
// with its machine (--state-sync off), or was restored from a backup. The next generation is one
// above all that were seen, so what is further ahead than this cannot be, and is not believed.
constexpr int64_t kMostAhead = 1000000;

// A worker would publish a checkpoint, or has. It is told whether it may. After one of a later
// generation than the job's the job goes on with a generation above that (IsBehindCheckpoint).
void OnCheckpoint(Context& context, Job& job, const Worker& worker, const CheckpointOffer& offer);

// Returns whether the newest checkpoint is of a later generation than the job's. No later one can
// appear before the job has one above that.
bool IsBehindCheckpoint(const Job& job);

// Returns the newest generation whose members may have published more than the coordinator knows,
// and that ended the ones before it: the newest one, or, where that is not known to have made a
// step, the one that its members were told of.
int64_t NewestPublisher(const Job& job);

// Adds what the members of a generation that is formed now are told of the job's checkpoints;
// `previous` is the NewestPublisher before it.
void TellCheckpoint(const Job& job, int64_t previous, Generation* generation);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_CHECKPOINTS_H_
