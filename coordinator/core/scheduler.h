// SPDX-License-Identifier: Apache-2.0
// Places waiting jobs on nodes, whole jobs at a time (gangs), by priority and then in the order of
// their submission; and says why a job still waits.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_
#define LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Starts every waiting job that fits, then the workers of running jobs that wait for a node. A job
// that would fit an empty cluster is not overtaken by later ones, so a large gang is never starved;
// one that would not fit does not hold others up. An elastic job starts with fewer workers than it
// wants, elastic.min_workers at least, after a short wait for more; the others follow.
void Schedule(Context& context);

// Whether a worker of the job waits for a node with room (Slot::unplaced).
bool WaitsForNode(const Job& job);

// Puts the new life of a place on its node, or on another with room when that one is out of sight
// or full. Without any it waits, and Schedule places it.
void PlaceLife(Context& context, const Job& job, Slot& slot);

// A node with room for one more worker of the job. Null: there is none.
Node* FindRoom(Context& context, const Job& job);

// Opens one more place for a worker, on a node that has room for the job; it has no life yet. Null:
// there is no such node, or the job has all the places that it may have.
Slot* AddSlot(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_
