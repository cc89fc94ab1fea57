// SPDX-License-Identifier: Apache-2.0
// Places waiting jobs on nodes, whole jobs at a time (gangs), by priority and then in the order of
// their submission; and says why a job still waits.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_
#define LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Starts every waiting job that fits. A job that would fit an empty cluster is not overtaken by
// later ones, so a large gang is never starved; one that would not fit does not hold others up.
void Schedule(Context& context);

// Puts the new life of a place on its node, or on another with room when that one is out of reach.
void PlaceLife(Context& context, const Job& job, Slot& slot);

// Opens one more place for a worker, on a connected node that has room and takes the job; it has no
// life yet. Null: there is no such node, or the job has all the places that it may have.
Slot* AddSlot(State& state, Job& job);

// Slots of `node` that hold a worker which has not ended.
int UsedSlots(const State& state, const Node& node);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_
