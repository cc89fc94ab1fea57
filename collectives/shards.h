// SPDX-License-Identifier: Apache-2.0
// The arithmetic of shards: which worker holds which, and the one binary tree along which sums over
// shards are taken. Pure functions of (shards, world size), so that every worker computes the same.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_SHARDS_H_
#define LOCKSTEP_COLLECTIVES_SHARDS_H_

#include <cstdint>
#include <vector>

namespace lockstep {

// Shards [begin, end).
struct ShardRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};

// The contiguous shards of `rank`: [rank * shards / world, (rank + 1) * shards / world).
// REQUIRES: 0 <= rank < world_size <= shards.
ShardRange DealShards(int shards, int world_size, int rank);

// Where the tree's node over `range` splits: begin + the largest power of two below its size.
// REQUIRES: range.size() >= 2.
int TreeSplit(ShardRange range);

// The maximal nodes of the tree over [0, shards) that lie inside `held`, from left to right. One
// node when the range is aligned; at most 2 log2(shards) otherwise.
std::vector<ShardRange> WholeNodes(int shards, ShardRange held);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHARDS_H_
