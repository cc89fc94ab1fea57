// SPDX-License-Identifier: Apache-2.0
// Which nodes a job may use now, what is free on them, and which device a worker gets there.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_NODES_H_
#define LOCKSTEP_COORDINATOR_CORE_NODES_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/context.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// A worker of the job's place is put on the node.
void NotePlace(const State& state, Node& node, const std::string& job_id, int place);
// The jobs of which workers are on the node, in order, and maybe some that had one there.
std::vector<std::string> JobsOn(const Node& node);

// The node's agent is connected and was heard from lately. An open connection alone says nothing: a
// host that froze, or whose cable was cut, keeps it open for minutes.
bool InSight(const State& state, const Node& node, absl::Time now);
// The same of the worker's node; a node that is not known any more is out of sight.
bool NodeInSight(const State& state, const Worker& worker, absl::Time now);

// Gives the node an administrator's word, or takes it back.
void SetDrain(State& state, Node& node, std::optional<DrainOrder> order);
// Its agent leaves and its workers are to go elsewhere before, or not any more.
void SetKeeps(State& state, Node& node, bool keeps);

// Returns whether the worker's agent leaves, and keeps it for a while.
bool OnLeaving(const State& state, const Worker& worker);

// Why the node gets no work from any job, though it is in sight: it is drained, its agent's checks
// fail, or it is left out. The same text while the same holds. Empty: it gets work.
std::string WhyNoWork(const Node& node, absl::Time now);

// The node has failed by itself, or workers of `job_id` could not begin there. It may be left out
// from now on, which the jobs with workers there are told.
void NoteNodeFailure(Context& context, const std::string& node_id, const std::string& what,
                     const std::string& job_id);

// Returns whether no worker of the job is started on the node for now (Job::excluded).
bool IsExcluded(const Job& job, const std::string& node_id, absl::Time now);
// Returns whether the job's data was another there (Exclusion), and nobody has found it put back.
bool HadOtherData(const Job& job, const std::string& node_id);

// Slots of `node` that hold a worker which has not ended.
int UsedSlots(const State& state, const Node& node);
// Returns whether a job that has not ended has a place there, with a process or without: its next
// worker would come there. A process that was replaced is no work.
bool HasWork(const State& state, const Node& node);
// Returns whether any worker's process is left there, also of those that were replaced.
bool HasProcesses(const State& state, const Node& node);

// The node as the queue sees it, but for its rack: what it has, and what is free there. What a
// worker of another job has is free when that one has ended, also when the other job goes on
// without it; `job` (null: none) does not wait for its own.
NodeFacts FactsOf(const State& state, const Node& node, absl::Time now);
Free FreeOn(const State& state, const Node& node, const Job* job);
// Adds which GPUs of the node its workers have, one each, as Free counts them: those that FreeOn
// (for no job) takes for theirs.
void AddGpuPlaces(const State& state, const Node& node,
                  std::unordered_map<const Worker*, uint64_t>* places);

// Returns whether the node could have a worker of the job if no other job had any there: it has
// what the job asks for. Also when it gets no work now: it may come back.
bool IsFor(const Job& job, const Node& node);

// Workers of the job that the node can take in addition: free slots, and free GPUs where the job
// uses them there (FreeOn). 0 when it is out of sight, excluded, gets no work, lacks a label, or
// serves another job alone. No more than a node can have of the job.
int Room(const State& state, const Job& job, const Node& node, absl::Time now);

// The device of the job's worker `local_rank` on the node: a GPU that no other worker has, or the
// CPU. "auto" is a GPU for each worker where the node has enough of them, "cuda:2" begins with the
// third. A GPU that is not there is one without a uuid: the worker says that it lacks it.
Device PickDevice(const State& state, const Job& job, const Node& node, int local_rank);

// Gives it to the worker.
void SetDevice(Device device, Worker& worker);

// Returns what a worker of such a job with this device has of its node.
Allocation AllocationOf(const JobSpec& spec, const Device& device);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NODES_H_
