// SPDX-License-Identifier: Apache-2.0
// For how long a job has trained. Each worker counts for itself, from 0, and says so in its
// heartbeats; what the job trained before a worker began is added to that worker's own. So the
// job's time goes on when all of its workers have been replaced, one after the other or at once.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_TRAINED_H_
#define LOCKSTEP_COORDINATOR_CORE_TRAINED_H_

#include "coordinator/core/context.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// Returns the seconds for which the job has trained, in all of its starts: as the worker knows them
// that has seen most of it.
double TrainedSeconds(const Job& job);

// A worker says for how many seconds it has trained; called before that is taken into its progress.
void NoteTraining(Context& context, Job& job, Worker& worker, double seconds);

// Keeps what is known so far; called before a worker leaves its place.
void KeepTraining(Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_TRAINED_H_
