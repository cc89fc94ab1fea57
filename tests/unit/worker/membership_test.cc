// SPDX-License-Identifier: Apache-2.0
#include "worker/control/membership.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;

// Two workers on each of three nodes, with a shard and a half for each.
Generation Six() {
  Generation generation;
  generation.set_generation(7);
  generation.set_shards(9);
  generation.set_secret("a secret");
  generation.set_start_step(41);
  (*generation.mutable_bootstrap())["nccl"] = "of rank 0";
  for (int rank = 0; rank < 6; ++rank) {
    Member& member = *generation.add_members();
    member.set_rank(rank);
    member.set_local_rank(rank % 2);
    member.set_incarnation(absl::StrCat("worker-", rank));
    member.mutable_address()->set_node_id(absl::StrCat("node-", rank / 2));
    member.mutable_address()->set_life_slot(rank % 2);
  }
  return generation;
}

TEST(SurvivorsOfTest, ThoseThatAreLeftHaveAllShardsInTheirOrder) {
  const Generation left = SurvivorsOf(Six(), 8, [](const Member& member) {
    return member.rank() != 1 && member.address().node_id() != "node-1";
  });
  EXPECT_EQ(left.generation(), 8);
  EXPECT_EQ(left.previous_generation(), 7);
  EXPECT_EQ(left.secret(), "a secret");
  EXPECT_EQ(left.bootstrap_size(), 0) << "that was of a rank of the last one";
  ASSERT_EQ(left.members_size(), 3);
  const char* const names[] = {"worker-0", "worker-4", "worker-5"};
  for (int rank = 0; rank < 3; ++rank) {
    const Member& member = left.members(rank);
    EXPECT_EQ(member.rank(), rank);
    EXPECT_EQ(member.incarnation(), names[rank]);
    EXPECT_EQ(member.local_rank(), rank == 2 ? 1 : 0);
    EXPECT_EQ(member.shard_begin(), 3 * rank);
    EXPECT_EQ(member.shard_end(), 3 * rank + 3);
  }
}

// Who takes a dead worker's place has another one, and so have those that stay when it is given up.
TEST(FirstRanksTest, TheLowestRankOfANodeIsItsFirstWhateverItsPlaceThere) {
  Generation generation = Six();
  EXPECT_THAT(FirstRanks(generation), ElementsAre(0, 0, 2, 2, 4, 4));
  for (Member& member : *generation.mutable_members()) member.set_local_rank(member.rank() + 1);
  generation.mutable_members(1)->mutable_address()->set_node_id("node-2");
  EXPECT_THAT(FirstRanks(generation), ElementsAre(0, 1, 2, 2, 1, 1));
}

TEST(GroupOfTest, LifeSlotsAreThoseOfTheOwnNode) {
  WorkerBootstrap bootstrap;
  bootstrap.set_node_id("node-1");
  bootstrap.mutable_assignment()->set_job_id("j");
  bootstrap.mutable_assignment()->set_incarnation("worker-3");
  const GroupSpec group = GroupOf(Six(), bootstrap);
  EXPECT_EQ(group.rank, 3);
  EXPECT_EQ(group.generation, 7);
  EXPECT_EQ(group.job, "j");
  EXPECT_EQ(group.members[3].life_slot, 1);
  EXPECT_EQ(group.members[0].life_slot, -1);
  EXPECT_TRUE(IsElsewhere(group, 0, "node-1"));
  EXPECT_FALSE(IsElsewhere(group, 2, "node-1"));
  bootstrap.mutable_assignment()->set_incarnation("a stranger");
  EXPECT_EQ(GroupOf(Six(), bootstrap).rank, -1);
}

TEST(IsOfTheNetworkTest, ADeathIsItWhereItHappenedElsewhere) {
  WorkerBootstrap bootstrap;
  bootstrap.set_node_id("node-1");
  const GroupSpec group = GroupOf(Six(), bootstrap);
  EXPECT_TRUE(IsOfTheNetwork(group, {EndCause::kUnreachable, 2}, "node-1"));
  EXPECT_TRUE(IsOfTheNetwork(group, {EndCause::kPeerDied, 0}, "node-1"));
  EXPECT_FALSE(IsOfTheNetwork(group, {EndCause::kPeerDied, 2}, "node-1"));
  EXPECT_FALSE(IsOfTheNetwork(group, {EndCause::kMismatch, 0}, "node-1"));
}

}  // namespace
}  // namespace lockstep::worker
