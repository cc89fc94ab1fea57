// SPDX-License-Identifier: Apache-2.0
// Where a job's workers start: which nodes hold it, how many workers each, and in which order,
// which is that of the ranks. Hosts come in their natural order (host2 before host10), so that
// ranks are where one looks for them, but for the node that the job wants rank 0 on, which is the
// first. Nodes of one rack are taken where they do, else those of few racks. Thread-safety: pure
// functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_PLACEMENT_H_
#define LOCKSTEP_COORDINATOR_CORE_PLACEMENT_H_

#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/capacity.h"

namespace lockstep::coordinator {

// How many workers start on which node, by its place in the cluster; rank 0's first.
using Placement = std::vector<std::pair<int, int>>;

// How many workers start.
int Workers(const Placement& placement);

// What there is for a job: what is free, less where it has to leave something for another.
struct Offer {
  const NodePool& cluster;
  const std::vector<Free>& free;
  const std::vector<Free>* leave = nullptr;  // no more than this either; null: all that is free
  Barred barred = nullptr;
};
// Returns whether the job names the node as the one that rank 0 is to be on.
bool IsRankZero(const Ask& ask, const NodeFacts& node);

// Workers of the job that the node can take.
int RoomOn(const Ask& ask, const Offer& offer, int node);

// Nodes that hold the job as its file asks; empty: it does not fit. Of a job whose workers are
// counted (Ask::counted): nodes of which it gets all GPUs, or all slots, a worker for each.
Placement Place(const Ask& ask, const Offer& offer);
// The same, or where that cannot be as many workers as there is room for, if those are
// `ask.least`; on few nodes, with that of rank 0.
Placement PlaceLeast(const Ask& ask, const Offer& offer);

// Returns what the workers of a counted job are one for each of: "cuda" or "cpu". Empty: none of it
// is there.
std::string CountedDevice(const Ask& ask, const Offer& whole);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_PLACEMENT_H_
