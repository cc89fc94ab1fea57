// SPDX-License-Identifier: Apache-2.0
// Which nodes a job may use now, what is free on them, and which device a worker gets there.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_NODES_H_
#define LOCKSTEP_COORDINATOR_CORE_NODES_H_

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// The node's agent is connected and was heard from lately. An open connection alone says nothing: a
// host that froze, or whose cable was cut, keeps it open for minutes.
bool InSight(const State& state, const Node& node, absl::Time now);
// The same of the worker's node; a node that is not known any more is out of sight.
bool NodeInSight(const State& state, const Worker& worker, absl::Time now);

// Whether no worker of the job is started on the node for now (Job::excluded).
bool IsExcluded(const Job& job, const std::string& node_id, absl::Time now);

// Slots of `node` that hold a worker which has not ended.
int UsedSlots(const State& state, const Node& node);

// Workers of the job that the node can take in addition: free slots, and free GPUs where the job
// uses them there. 0 when it is out of sight, excluded, or serves another job alone. `empty`: as if
// no worker ran on it.
int Room(const State& state, const Job& job, const Node& node, absl::Time now, bool empty = false);

// The device of the job's worker `local_rank` on the node: a GPU that no other worker has, or the
// CPU. "auto" is a GPU for each worker where the node has enough of them, "cuda:2" begins with the
// third. A GPU that is not there is one without a uuid: the worker says that it lacks it.
Device PickDevice(const State& state, const Job& job, const Node& node, int local_rank);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NODES_H_
