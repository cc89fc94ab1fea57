// SPDX-License-Identifier: Apache-2.0
// What nodes have and what of it is free, in the small form in which the queue computes: one entry
// for each node, and a number for each in what is asked of them. Thread-safety: plain data and pure
// functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_CAPACITY_H_
#define LOCKSTEP_COORDINATOR_CORE_CAPACITY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace lockstep::coordinator {

// What a job asks for, as its file says it.
struct Ask {
  std::vector<int> counts;  // workers of each node, in the order of the ranks; never empty
  int wanted = 1;           // their sum
  int least = 1;            // with how many it may start
  bool anywhere = false;    // also on other nodes than `counts` says
  int per_node = 1;         // resources.nproc_per_node
  int most_of_node = std::numeric_limits<int>::max();  // workers that one can have
  enum class Gpus { kNever, kWhereEnough, kAlways };
  Gpus gpus = Gpus::kWhereEnough;
  int first_gpu = 0;      // the ones before it on a node are not for it
  std::string rank_zero;  // the node, or host, that rank 0 is to be on; empty: any
  std::map<std::string, std::string> labels;
  // Workers are as many as there are GPUs or slots ("gpu", "cpu", "auto"); empty: `counts` says.
  std::string counted;
  int most = 0;  // with `counted`: workers at most

  int priority = 0;
  absl::Duration limit = absl::InfiniteDuration();
  std::string user;
  int64_t order = 0;  // of its submission
  // Equal for asks that find room on the same nodes. SetShape.
  std::string shape;
};

// Fills in `ask.shape`.
void SetShape(Ask& ask);

// What does not change while jobs come and go.
struct NodeFacts {
  std::string id;
  std::string host;
  bool open = true;  // it gets work
  // One that does not get any only as it is out of sight is expected back until then: what was to
  // start on it is not put off by who starts meanwhile.
  absl::Time awaited_until = absl::InfinitePast();
  bool is_private = false;  // it serves one job alone
  int slots = 0;
  int gpus = 0;  // as its agent lists them: one that is listed twice is for two workers
  std::map<std::string, std::string> labels;
  int rack = 0;  // equal for nodes near each other; 0: not known
};

// What is free on a node. GPUs by their place in its list; those from the 64th on are not used.
struct Free {
  int slots = 0;
  uint64_t gpus = 0;
};

// Nodes in the order of their hosts.
struct NodePool {
  std::vector<NodeFacts> nodes;
  std::vector<Free> free;
};
// All of them empty.
std::vector<Free> Whole(const NodePool& cluster);

// Nodes, by their places, that a job may not use. Null: it may use all that are open.
using Barred = std::shared_ptr<const std::vector<bool>>;
// Those without the labels that are asked for.
Barred BarredByLabels(const NodePool& cluster, const Ask& ask);

// Returns whether the job's workers have GPUs there.
bool UsesGpus(const Ask& ask, int gpus);

// Workers of the job that the node can take in addition.
int Room(const Ask& ask, const NodeFacts& node, const Free& free);

// What somebody has of a node: so many slots and GPUs, and which of those that it lists now.
struct Taken {
  int node = 0;
  int slots = 0;
  int gpus = 0;
  uint64_t gpu_places = 0;  // as in Free
};
// Adds what somebody has of the same node.
void Join(const Taken& more, Taken& sum);
// Takes `workers` of the job from what is free; what they have then.
Taken Take(const Ask& ask, const NodePool& cluster, int node, int workers, std::vector<Free>& free);
void Give(const NodePool& cluster, const Taken& hold, std::vector<Free>& free);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_CAPACITY_H_
