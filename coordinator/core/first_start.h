// SPDX-License-Identifier: Apache-2.0
// A job that cannot begin on a node, for want of its folder, its data or memory, and has begun
// nowhere yet: whether that is the node's fault or the job's, other nodes show. It waits again and
// is tried on up to three nodes in all; what these lack, or all that could hold it, ends it. Where
// it begins, the nodes that were tried before have failed (node_trust.h).
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_FIRST_START_H_
#define LOCKSTEP_COORDINATOR_CORE_FIRST_START_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Returns whether the job, whose `worker` has failed, is tried on another node: then its workers
// are ended, and it waits again without that node. Jobs of several nodes are not: their other hosts
// show the same.
bool TryElsewhere(Context& context, Job& job, const Worker& worker);

// Returns on which other nodes than that of `worker` the job could not begin either, as a note to
// its end; empty: on none.
std::string SayWhereElse(const State& state, const Job& job, const Worker& worker);

// Counts it against the nodes where the job could not begin when a worker of it is ready on
// another, and against none where one is ready by then.
void BlameNodes(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_FIRST_START_H_
