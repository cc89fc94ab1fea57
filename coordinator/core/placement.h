// SPDX-License-Identifier: Apache-2.0
// Where a job's workers start: which nodes hold it, how many workers each, and in which order,
// which is that of the ranks. Hosts come in their natural order (host2 before host10), so that
// ranks are where one looks for them, but for the node that the job wants rank 0 on, which is the
// first. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_PLACEMENT_H_
#define LOCKSTEP_COORDINATOR_CORE_PLACEMENT_H_

#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// How many workers start on which node, rank 0's first.
using Placement = std::vector<std::pair<Node*, int>>;

// How many workers start.
int Workers(const Placement& placement);

// Whether the job wants rank 0 on this node, by its id or its host's name.
bool IsRankZeroNode(const Job& job, const std::string& node_id, const std::string& host);

// Nodes that hold the job as its file asks. Empty: it does not fit. `empty`: as if nothing ran.
Placement Place(Context& context, const Job& job, bool empty);
// As many workers as there is room for, on few nodes, with that of rank 0.
Placement PlaceSome(Context& context, const Job& job, bool empty);

// Nodes with their workers, and what there is one for each of: "cuda" or "cpu".
struct CountedPlacement {
  Placement placement;  // empty: the job does not fit
  std::string device;
};
// Of a job whose workers are yet to be counted (resources.nproc_by): nodes of which it gets all
// GPUs, or all slots, a worker for each, in the order of their hosts. "auto" means GPUs wherever
// enough nodes have some. As many workers at most as the job has shards.
CountedPlacement PlaceCounted(Context& context, const Job& job, bool empty);

// "4 slots on 2 nodes (2 on each)", "4 slots on 2 nodes (3, 1)": what the file asks for.
std::string SayWanted(const Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_PLACEMENT_H_
