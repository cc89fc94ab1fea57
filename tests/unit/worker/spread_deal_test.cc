// SPDX-License-Identifier: Apache-2.0
#include "worker/state/spread_deal.h"
#include "absl/algorithm/container.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kTail = 14753;  // where the gradients of the last parameter end
constexpr int64_t kGradients = 16 * 1070;
constexpr int64_t kVector = kGradients + 23;  // with a header

// Of parameters of odd sizes, what lies between them, and a tail of more than one block.
std::vector<engine::GradientRange> Blocks() {
  std::vector<engine::GradientRange> blocks, gaps;
  const auto add = [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += 2048) blocks.push_back({begin, std::min(end, begin + 2048)});
  };
  int64_t at = 0;
  for (const int64_t size : {5001, 16, 700, 3000, 1, 6001}) {
    const int64_t begin = (at + 15) / 16 * 16;
    if (at < begin) gaps.push_back({at, begin});
    at = begin + size;
    add(begin, at);
  }
  EXPECT_EQ(at, kTail);
  blocks.insert(blocks.end(), gaps.begin(), gaps.end());
  add(kTail, kGradients);
  return blocks;
}

bool Has(const std::vector<ElementRange>& ranges, int64_t begin, int64_t end) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const ElementRange& range) {
    return range.begin <= begin && end <= range.end;
  });
}

TEST(SpreadDeal, EveryRankGetsWhatItHoldsAndSumsAndTheTail) {
  for (const int world : {3, 4, 5, 8}) {
    const ShardHolders holders = DealHolders(ShardHolders(48), world);
    const std::vector<engine::GradientRange> blocks = Blocks();
    const GradientDeal deal = DealGradients(blocks, kTail, kGradients, kVector, holders, world);
    ASSERT_EQ(deal.wanted.size(), static_cast<size_t>(world));
    ASSERT_EQ(deal.summed_by.size(), blocks.size());
    for (int rank = 0; rank < world; ++rank) {
      const std::vector<ElementRange>& wanted = deal.wanted[static_cast<size_t>(rank)];
      int64_t next = -1, all = 0;
      for (const ElementRange& range : wanted) {
        EXPECT_GT(range.begin, next);  // apart, or they would be one
        EXPECT_EQ(range.begin % 16, 0);
        EXPECT_TRUE(range.end % 16 == 0 || range.end == kVector);
        next = range.end;
        all += range.size();
      }
      EXPECT_TRUE(Has(wanted, kTail, kVector));
      for (int shard = 0; shard < 48; ++shard) {
        const ElementRange range = SliceOf(kGradients, 48, shard);
        if (!absl::c_linear_search(holders[static_cast<size_t>(shard)], rank)) continue;
        EXPECT_TRUE(Has(wanted, range.begin, range.end));
      }
      for (size_t block = 0; block < blocks.size(); ++block) {
        if (deal.summed_by[block] != rank) continue;
        EXPECT_TRUE(Has(wanted, blocks[block].begin, blocks[block].end));
      }
      // Two parts of `world`, and what blocks and the end add.
      EXPECT_LT(all, world > 3 ? kVector * 2 / world + 4 * 2048 : kVector + 1);
    }
    // Sums are made where most of a block is held.
    for (int rank = 0; rank < world && world < 5; ++rank) {
      EXPECT_TRUE(absl::c_linear_search(deal.summed_by, rank));
    }
  }
}

TEST(SpreadDeal, WeightsComeFromOneHolderToThoseWhoLackThem) {
  const ShardHolders holders = DealHolders(ShardHolders(48), 4);
  for (const std::vector<int>& takers : {std::vector<int>{0, 1, 2, 3}, {2}, {}}) {
    std::vector<std::vector<int>> times(4, std::vector<int>(48, 0));
    std::vector<int> sent(4, 0);
    for (const RangeTransfer& transfer :
         WeightTransfers(kGradients, holders, takers, {0, 0, 0, 0})) {
      int shard = 0;
      while (SliceOf(kGradients, 48, shard).begin != transfer.begin) ++shard;
      EXPECT_EQ(transfer.end, SliceOf(kGradients, 48, shard).end);
      EXPECT_TRUE(absl::c_linear_search(holders[static_cast<size_t>(shard)], transfer.from));
      ++sent[static_cast<size_t>(transfer.from)];
      for (const int to : transfer.to) ++times[static_cast<size_t>(to)][static_cast<size_t>(shard)];
    }
    if (takers.size() == 4) {
      EXPECT_EQ(sent, std::vector<int>(4, 12));
    }
    for (int rank = 0; rank < 4; ++rank) {
      for (size_t shard = 0; shard < 48; ++shard) {
        const bool lacks =
            absl::c_linear_search(takers, rank) && !absl::c_linear_search(holders[shard], rank);
        EXPECT_EQ(times[static_cast<size_t>(rank)][shard], lacks ? 1 : 0);
      }
    }
  }
}

TEST(SpreadDeal, WeightsComeFromTheOwnHostWhereItHasThem) {
  const std::vector<int> hosts = {0, 0, 1, 1, 2};
  const ShardHolders holders = {{0, 2}, {1, 4}, {3, 4}};
  const std::vector<RangeTransfer> transfers = WeightTransfers(48, holders, {0, 1, 2, 3, 4}, hosts);
  std::vector<std::vector<int>> from(5, std::vector<int>(3, -1));
  for (const RangeTransfer& transfer : transfers) {
    for (const int to : transfer.to) {
      from[static_cast<size_t>(to)][static_cast<size_t>(transfer.begin / 16)] = transfer.from;
    }
  }
  EXPECT_EQ(from[0], (std::vector<int>{-1, 1, 3}));
  EXPECT_EQ(from[1], (std::vector<int>{0, -1, 3}));
  EXPECT_EQ(from[2], (std::vector<int>{-1, 4, 3}));
  EXPECT_EQ(from[3], (std::vector<int>{2, 4, -1}));
  EXPECT_EQ(from[4], (std::vector<int>{0, -1, -1}));
}

}  // namespace
}  // namespace lockstep::worker
