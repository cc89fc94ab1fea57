// SPDX-License-Identifier: Apache-2.0
#include "collectives/shards.h"

#include <bit>

#include "common/check.h"

namespace lockstep {
namespace {

void AppendWhole(ShardRange node, ShardRange held, std::vector<ShardRange>* nodes) {
  if (node.end <= held.begin || held.end <= node.begin) return;
  if (held.begin <= node.begin && node.end <= held.end) {
    nodes->push_back(node);
    return;
  }
  const int middle = TreeSplit(node);
  AppendWhole({node.begin, middle}, held, nodes);
  AppendWhole({middle, node.end}, held, nodes);
}

}  // namespace

ShardRange DealShards(int shards, int world_size, int rank) {
  LS_CHECK(0 <= rank && rank < world_size && world_size <= shards)
      << "rank " << rank << " of " << world_size << " with " << shards << " shards";
  const int64_t total = shards;
  return {static_cast<int>(rank * total / world_size),
          static_cast<int>((rank + 1) * total / world_size)};
}

int TreeSplit(ShardRange range) {
  LS_CHECK_GE(range.size(), 2);
  return range.begin + static_cast<int>(std::bit_floor(static_cast<unsigned>(range.size() - 1)));
}

std::vector<ShardRange> WholeNodes(int shards, ShardRange held) {
  LS_CHECK(0 <= held.begin && held.begin <= held.end && held.end <= shards)
      << "[" << held.begin << ", " << held.end << ") of " << shards;
  std::vector<ShardRange> nodes;
  if (held.size() > 0) AppendWhole({0, shards}, held, &nodes);
  return nodes;
}

}  // namespace lockstep
