// SPDX-License-Identifier: Apache-2.0
// Jobs make room for one of higher priority. An elastic one lets workers go between two steps, and
// has them again when no job waits for their room. Any other stops: with a `checkpoint` section its
// workers finish their step, save and leave (they are killed after preemption.grace), without one
// they are killed; then the job waits again, with its generation, and goes on from its checkpoint
// or from its beginning, with the same bits. It costs it no restart. So does one whose workers are
// all left by their agents. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_PREEMPTION_H_
#define LOCKSTEP_COORDINATOR_CORE_PREEMPTION_H_

#include <string>
#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// The job stops for `by`. Nothing happens when it is on its way out already.
void StopFor(Context& context, Job& job, const Job& by);

// The job stops since the agents of all its workers leave, where it has something to save.
void StopToSave(Context& context, Job& job);

// The job lets the workers of these places go for `by`.
void LendFor(Context& context, Job& job, const std::vector<int>& places, const Job& by);

// Takes places back that were lent, where nodes have room.
void TakeLentBack(Context& context, Job& job);

// A job that stops so and does not do it in time is stopped.
void CheckPreempted(Context& context, Job& job);

// Its workers are gone, or their nodes are out of sight: it waits again.
void MaybeRequeue(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_PREEMPTION_H_
