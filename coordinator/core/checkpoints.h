// SPDX-License-Identifier: Apache-2.0
// Which checkpoint of a job is its newest. They are ordered by generation and step, and one that
// comes after a newer one is not let appear: who wrote it stood still while the job went on.
// Thread-safety: pure functions of the state.
#ifndef LOCKSTEP_COORDINATOR_CORE_CHECKPOINTS_H_
#define LOCKSTEP_COORDINATOR_CORE_CHECKPOINTS_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// A worker would publish a checkpoint, or has. It is told whether it may.
void OnCheckpoint(Context& context, Job& job, const Worker& worker, const CheckpointOffer& offer);

// Adds what the members of a generation that is formed now are told of the job's checkpoints;
// `previous` is the number of the generation before it.
void TellCheckpoint(const Job& job, int64_t previous, Generation* generation);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_CHECKPOINTS_H_
