// SPDX-License-Identifier: Apache-2.0
// Generations: one agreed membership of a job. A generation is formed when every worker that shall
// be in it is ready; it ends by an abort, after which its survivors report ready again and the next
// one is formed. The number only grows. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_GENERATION_H_
#define LOCKSTEP_COORDINATOR_CORE_GENERATION_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Forms the next generation when none is active and every worker that must be in it is ready: at
// the start all that are wanted, later all members of the last one that live. Whoever else is ready
// joins. With fewer than elastic.min_workers the job waits and says so. Workers that wait to join
// an active generation, or are to leave it, make its members leave it together after a step.
// Workers that compiled another plan, or whose device computes other bits (with `reproducible`),
// end the job at its start; later they are refused. Those of a build that says other things to its
// peers are refused at the start, too, when others are on another node.
void MaybeFormGeneration(Context& context, Job& job);

// Returns whether the worker can be in the next generation.
bool Able(const Job& job, const Worker& worker);

// Why a worker that is ready would not be let into the active generation: it does not understand
// its peers, it compiled another plan, its device computes other bits, or, which `other_data` tells
// apart, its data is another. Empty: it would.
std::string WhyNotAdmitted(const Job& job, const Worker& worker, bool* other_data);

// Returns whether the job's work is done: rank 0 of the newest generation has finished, so the
// model is durable.
bool ResultIsThere(const Job& job);

// A member of the newest generation has begun to train, after the step `resumed` of a checkpoint
// when that is not 0. Says after which step the job goes on, which was not known before when nobody
// had any state.
void NoteResumed(Context& context, Job& job, int64_t resumed);

// Ends the active generation, if there is one; its members are told to leave it.
void AbortCurrentGeneration(Context& context, Job& job, const std::string& reason);

// Brings the connected workers up to date: generation, abort, regroup, drain, exit, whatever one
// was not told.
void PushWorkers(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_GENERATION_H_
