// SPDX-License-Identifier: Apache-2.0
// The state as the queue's rules see it (queue_pass.h). Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_QUEUE_VIEW_H_
#define LOCKSTEP_COORDINATOR_CORE_QUEUE_VIEW_H_

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/queue_pass.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// Returns what the job asks for. Of a job whose workers are counted it is another one when they
// are.
std::shared_ptr<const Ask> AskOf(const Job& job);

// The job may start as far as it depends on itself: it waits, is not held and needs no other's end.
bool IsReady(const Job& job);

// Returns whether a worker of the place runs on a node, or is to.
bool HasProcess(const Slot& slot);

// Returns what a job that has started has of its user's quota: its workers, those that it is yet to
// get as well, and those of its spares that have a process.
int SlotsOf(const Job& job);

struct QueueView {
  Queue queue;
  std::vector<const Job*> waiting;          // of each place in queue.waiting
  std::vector<const Job*> running;          // of each place in queue.running
  std::vector<std::vector<int>> spare;      // of each running job, the places that are spare
  std::map<std::string, int> node_places;   // in queue.cluster
  std::vector<int> private_nodes;           // their places
  std::map<std::string, int> array_places;  // in queue.array_left
  // Of workers with GPUs, which (Taken::gpu_places).
  std::unordered_map<const Worker*, uint64_t> gpu_places;
};
// Of all jobs that are ready.
QueueView ViewQueue(const State& state, absl::Time now);
QueueRules RulesOf(const Options& options);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_QUEUE_VIEW_H_
