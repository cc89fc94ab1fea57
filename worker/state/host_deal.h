// SPDX-License-Identifier: Apache-2.0
// Which ranks hold which optimizer shards when the ranks are on several hosts: the two holders of a
// shard are on two hosts, so that no shard is lost with a host. Hosts have about as many shards for
// each of their ranks, but one that has more than half of the ranks has every shard once, and the
// others share the rest. Who had a shard keeps it where that is possible. All ranks compute the
// same deal from the same arguments. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_STATE_HOST_DEAL_H_
#define LOCKSTEP_WORKER_STATE_HOST_DEAL_H_

#include <vector>

#include "absl/types/span.h"
#include "worker/state/shard_holders.h"

namespace lockstep::worker {

// The deal of shards that `before` had; a shard of a new job was nobody's. `hosts` is the host of
// each rank, numbered from 0 without gaps. On one host as DealHolders; with two ranks everybody has
// everything.
ShardHolders DealOverHosts(const ShardHolders& before, absl::Span<const int> hosts);

// The most of `shards` that a rank is dealt, of hosts with so many ranks.
int MostHeldOverHosts(int shards, absl::Span<const int> ranks_of_host);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_HOST_DEAL_H_
