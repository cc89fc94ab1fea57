// SPDX-License-Identifier: Apache-2.0
// Which ranks hold which optimizer shards (train.zero_stage: 1): each shard is on two ranks, every
// rank has about as many, and who had a shard keeps it where that is possible. Over hosts the two
// are of two hosts (host_deal.h). All ranks compute the same deal from the same arguments.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_STATE_SHARD_HOLDERS_H_
#define LOCKSTEP_WORKER_STATE_SHARD_HOLDERS_H_

#include <cstddef>
#include <vector>

namespace lockstep::worker {

// By shard: the ranks that hold it, ascending.
using ShardHolders = std::vector<std::vector<int>>;

// Optimizer shards of a job that has at most `most_workers`: enough for even shares.
int OptimizerShards(int most_workers);
// The most of `shards` that a rank of `world` is dealt, on one host.
int MostHeld(int shards, int world);

// The deal to `world` ranks of one host of shards that `before` had; a shard of a new job was
// nobody's. With up to two ranks everybody has everything. A rank's first shards are not of the
// slice of the gradient vector that it owns, so that their new weights find room in its gradient
// memory.
ShardHolders DealHolders(const ShardHolders& before, int world);

// The rank of `world` in whose slice of the gradient vector a shard lies, mostly.
int OwnerOfShard(size_t shard, size_t shards, int world);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_SHARD_HOLDERS_H_
