// SPDX-License-Identifier: Apache-2.0
// Carries out what the queue's rules decide (queue_pass.h): starts waiting jobs, whole jobs at a
// time (gangs), and has others make room; and places the workers of running jobs that wait for a
// node. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_
#define LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_

#include <string>
#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Starts every waiting job that may and can, then the workers of running jobs that wait for a node.
// An elastic job starts with fewer workers than it wants, elastic.min_workers at least, after a
// short wait for more; the others follow.
void Schedule(Context& context);

// The workers of a job that has lost some come before all that wait; no pass is needed for them.
void PlaceRecovering(Context& context, Job& job);

// Returns what is told of a job whose workers are started on these hosts.
std::string SayStarting(int workers, const std::vector<std::string>& hosts);

// Returns whether a worker of the job waits for a node with room (Slot::unplaced), or a place that
// is to have one again (Slot::returns).
bool WaitsForNode(const Job& job);

// Puts the new life of a place on its node, or on another with room when that one is out of sight
// or full. Without any it waits, and Schedule places it.
void PlaceLife(Context& context, const Job& job, Slot& slot);

// A node with room for one more worker of the job; those whose data was another come last, and not
// at all with `same_data`. `may_wait`: the job goes on without it, so it leaves the nodes alone
// that are kept for a job which waits. Null: there is none.
Node* FindRoom(Context& context, const Job& job, bool may_wait = false, bool same_data = false);

// The same for a worker that is to relieve one on a drained node, which does not wait: only a node
// that is kept for a job of higher priority is left alone, unless the agent of `relieved` leaves,
// whose replacement could have that node.
Node* FindRoomToRelieve(Context& context, const Job& job, const Worker& relieved);

// Opens one more place for a worker, or again one that was given up; it has no life yet. Null: the
// job has all the places that it may have.
Slot* FreePlace(Job& job);

// The same on a node that has room for the job. Null also when there is no such node.
Slot* AddSlot(Context& context, Job& job, bool may_wait = false);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SCHEDULER_H_
