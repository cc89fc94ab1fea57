// SPDX-License-Identifier: Apache-2.0
#include "collectives/shards.h"

#include <cmath>
#include <set>
#include <utility>

#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Every node of the tree over [begin, end).
void CollectNodes(ShardRange node, std::set<std::pair<int, int>>* nodes) {
  nodes->insert({node.begin, node.end});
  if (node.size() < 2) return;
  const int middle = TreeSplit(node);
  CollectNodes({node.begin, middle}, nodes);
  CollectNodes({middle, node.end}, nodes);
}

TEST(ShardsTest, SplitIsTheLargestPowerOfTwoBelowTheSize) {
  EXPECT_EQ(TreeSplit({0, 2}), 1);
  EXPECT_EQ(TreeSplit({0, 3}), 2);
  EXPECT_EQ(TreeSplit({0, 4}), 2);
  EXPECT_EQ(TreeSplit({0, 5}), 4);
  EXPECT_EQ(TreeSplit({0, 8}), 4);
  EXPECT_EQ(TreeSplit({0, 9}), 8);
  EXPECT_EQ(TreeSplit({4, 7}), 6);
}

TEST(ShardsTest, DealsAreContiguousAndEven) {
  for (int shards = 1; shards <= 64; ++shards) {
    for (int world = 1; world <= shards; ++world) {
      int next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const ShardRange range = DealShards(shards, world, rank);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), shards / world);
        EXPECT_LE(range.size(), (shards + world - 1) / world);
        next = range.end;
      }
      EXPECT_EQ(next, shards);
    }
  }
}

TEST(ShardsTest, WholeNodesCoverTheRangeWithMaximalNodes) {
  for (int shards = 1; shards <= 64; ++shards) {
    std::set<std::pair<int, int>> all;
    CollectNodes({0, shards}, &all);
    for (int begin = 0; begin < shards; ++begin) {
      for (int end = begin + 1; end <= shards; ++end) {
        const std::vector<ShardRange> nodes = WholeNodes(shards, {begin, end});
        int next = begin;
        for (const ShardRange& node : nodes) {
          ASSERT_EQ(node.begin, next);
          ASSERT_TRUE(all.count({node.begin, node.end}));
          next = node.end;
        }
        ASSERT_EQ(next, end);
        // Maximal: no other node of the tree inside the range holds one of them.
        for (const auto& [b, e] : all) {
          if (b < begin || e > end) continue;
          for (const ShardRange& node : nodes) {
            ASSERT_FALSE(b <= node.begin && node.end <= e && e - b > node.size());
          }
        }
        ASSERT_LE(nodes.size(), std::max(1.0, 2 * std::ceil(std::log2(shards))));
      }
    }
  }
}

TEST(ShardsTest, AlignedRangesAreOneNode) {
  for (int shards = 1; shards <= 64; shards *= 2) {
    for (int world = 1; world <= shards; world *= 2) {
      for (int rank = 0; rank < world; ++rank) {
        EXPECT_EQ(WholeNodes(shards, DealShards(shards, world, rank)).size(), 1u);
      }
    }
  }
  EXPECT_THAT(WholeNodes(5, {0, 5}), testing::ElementsAre(ShardRange{0, 5}));
  EXPECT_THAT(WholeNodes(5, {1, 5}),
              testing::ElementsAre(ShardRange{1, 2}, ShardRange{2, 4}, ShardRange{4, 5}));
  EXPECT_THAT(WholeNodes(5, {2, 2}), testing::IsEmpty());
}

TEST(ShardsTest, SlicesAreAlignedAndCoverTheVector) {
  for (const int64_t count : {0, 1, 15, 16, 17, 100, 1000, 4096, 203530}) {
    for (int world = 1; world <= 9; ++world) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const ElementRange slice = SliceOf(count, world, rank);
        EXPECT_EQ(slice.begin, next);
        EXPECT_LE(slice.begin, slice.end);
        EXPECT_TRUE(slice.begin % 16 == 0 || slice.begin == count);
        EXPECT_LE(slice.size(), count / world + 32);
        next = slice.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace lockstep
