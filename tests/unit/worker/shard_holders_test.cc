// SPDX-License-Identifier: Apache-2.0
#include "worker/state/shard_holders.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

std::vector<int> Loads(const ShardHolders& holders, int world) {
  std::vector<int> loads(static_cast<size_t>(world), 0);
  for (const std::vector<int>& ranks : holders) {
    for (const int rank : ranks) ++loads[static_cast<size_t>(rank)];
  }
  return loads;
}

// Checks what the deal promises, whatever was before.
void Check(const ShardHolders& holders, int world) {
  for (const std::vector<int>& ranks : holders) {
    EXPECT_EQ(ranks.size(), static_cast<size_t>(std::min(world, 2)));
    EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    EXPECT_EQ(std::set<int>(ranks.begin(), ranks.end()).size(), ranks.size());
  }
  for (const int load : Loads(holders, world)) {
    EXPECT_LE(load, MostHeld(static_cast<int>(holders.size()), world));
  }
}

// The holders that are left when `dead` is gone: later ranks move up.
ShardHolders Without(const ShardHolders& holders, int dead) {
  ShardHolders left;
  for (const std::vector<int>& ranks : holders) {
    std::vector<int>& now = left.emplace_back();
    for (const int rank : ranks) {
      if (rank != dead) now.push_back(rank > dead ? rank - 1 : rank);
    }
  }
  return left;
}

int Moved(const ShardHolders& before, const ShardHolders& after) {
  int moved = 0;
  for (size_t shard = 0; shard < after.size(); ++shard) {
    for (const int rank : after[shard]) {
      moved += std::count(before[shard].begin(), before[shard].end(), rank) == 0 ? 1 : 0;
    }
  }
  return moved;
}

TEST(ShardHoldersTest, ANewJobIsDealtEvenlyAndAwayFromTheOwnSlice) {
  for (int world = 1; world <= 9; ++world) {
    const int shards = OptimizerShards(world);
    const ShardHolders holders = DealHolders(ShardHolders(static_cast<size_t>(shards)), world);
    SCOPED_TRACE(world);
    Check(holders, world);
    if (world < 3) continue;
    for (size_t shard = 0; shard < holders.size(); ++shard) {
      const int owner = static_cast<int>(shard) * world / shards;
      if (shards % world == 0) {
        EXPECT_EQ(std::count(holders[shard].begin(), holders[shard].end(), owner), 0) << shard;
      }
    }
  }
  EXPECT_EQ(MostHeld(48, 4), 24);
  EXPECT_EQ(MostHeld(48, 2), 48);
  EXPECT_EQ(OptimizerShards(200), 400);
}

TEST(ShardHoldersTest, AfterADeathLittleMoreThanItsShardsMoves) {
  for (int world = 4; world <= 8; ++world) {
    const ShardHolders before = DealHolders(ShardHolders(48), world);
    for (int dead = 0; dead < world; ++dead) {
      SCOPED_TRACE(dead);
      const ShardHolders left = Without(before, dead);
      const ShardHolders after = DealHolders(left, world - 1);
      Check(after, world - 1);
      const int lost = Loads(before, world)[static_cast<size_t>(dead)];
      EXPECT_GE(Moved(left, after), lost);
      EXPECT_LE(Moved(left, after), lost + 3);  // shares are not always even
      // The replacement gets its share, nobody else gets anything.
      const ShardHolders again = DealHolders(after, world);
      Check(again, world);
      EXPECT_LE(Moved(after, again), MostHeld(48, world));
      for (size_t shard = 0; shard < again.size(); ++shard) {
        for (const int rank : again[shard]) {
          const bool had = std::count(after[shard].begin(), after[shard].end(), rank) > 0;
          EXPECT_TRUE(had || rank == world - 1) << shard;
        }
      }
    }
  }
}

TEST(ShardHoldersTest, AnyHistoryEndsInALegalDeal) {
  uint32_t random = 1;
  int world = 4;
  ShardHolders holders = DealHolders(ShardHolders(48), world);
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525 + 1013904223;
    const bool dies = (random >> 16) % 2 == 0;
    if (dies && world > 3) {
      holders = Without(holders, static_cast<int>((random >> 8) % static_cast<uint32_t>(world)));
      --world;
    } else if (!dies && world < 9) {
      ++world;
    }
    holders = DealHolders(holders, world);
    Check(holders, world);
  }
}

}  // namespace
}  // namespace lockstep::worker
