// SPDX-License-Identifier: Apache-2.0
// Generations: one agreed membership of a job. A generation is formed when every worker that shall
// be in it is ready; it ends by an abort, after which its survivors report ready again and the next
// one is formed. The number only grows. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_GENERATION_H_
#define LOCKSTEP_COORDINATOR_CORE_GENERATION_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Forms the next generation when none is active and every worker is ready. Workers that compiled
// another plan, or whose device computes other bits (with `reproducible`), end the job.
void MaybeFormGeneration(Context& context, Job& job);

// Ends the active generation, if there is one; its members are told to leave it.
void AbortCurrentGeneration(Context& context, Job& job, const std::string& reason);

// Brings a connected worker up to date: generation, abort, drain, exit, whatever it was not told.
void PushWorker(Context& context, const Job& job, Worker& worker);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_GENERATION_H_
