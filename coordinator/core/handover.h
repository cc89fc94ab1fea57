// SPDX-License-Identifier: Apache-2.0
// Workers leave nodes that are drained, or whose agents leave, without any step lost and without a
// restart spent. One that is no member yet starts anew elsewhere. For a member another worker is
// started on a node with room, which relieves it: when that one is ready, the members leave their
// generation together after a step, and the next one has the newcomer in the other's place. At
// least one that has the state stays each time (with the optimizer's state in parts, all but one),
// so a job that has all its workers there moves in several generations. Where no node has room, a
// job that may be smaller goes on without those workers until one has; any other keeps them where
// they are. Where an agent leaves nobody stays: a job that can neither hand over nor go on without
// them saves and waits, and costs no restart; who has nothing to wait for is ended. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_HANDOVER_H_
#define LOCKSTEP_COORDINATOR_CORE_HANDOVER_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Takes what steps are due for the job's workers on such nodes.
void LeaveDrainedNodes(Context& context, Job& job);

// Starts workers in the places of those that have left such nodes. The job goes on without them, so
// they wait for nodes that are kept for no other job; a look goes over all nodes, so each pass over
// the queue looks, and nobody else.
void TakeReturningBack(Context& context, Job& job);

// The worker's agent leaves, and nothing is left to be done that it should be kept for.
bool IsLeftByItsAgent(const State& state, const Job& job, const Worker& worker);

// The place whose worker is to relieve that of `slot`. Null: there is none.
Slot* FindRelief(Job& job, const Slot& slot);

// Which of the job's workers leave such nodes, or `node_id` alone unless it is empty, and why
// others stay, in a sentence. Empty: none is there.
std::string SayMoves(const State& state, const Job& job, const std::string& node_id);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_HANDOVER_H_
