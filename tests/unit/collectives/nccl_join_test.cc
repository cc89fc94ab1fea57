// SPDX-License-Identifier: Apache-2.0
// How ranks come to a common NCCL communicator, from what each says of itself.
#include "collectives/nccl/nccl_join.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Way = NcclJoin::Way;

std::vector<NcclHello> Hellos(int world) {
  std::vector<NcclHello> hellos(static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) {
    NcclHello& hello = hellos[static_cast<size_t>(r)];
    hello.version = 22809;
    hello.can_shrink = hello.can_grow = 1;
    std::strcpy(hello.gpu, absl::StrCat("GPU-", r).c_str());
    std::strcpy(hello.host, "here");
  }
  return hellos;
}

// The ranks of `held` hold a communicator of `world` ranks.
void Hold(std::vector<NcclHello>* hellos, const std::vector<int>& held, int world) {
  for (size_t r = 0; r < held.size(); ++r) {
    (*hellos)[r].held_generation = 4;
    (*hellos)[r].held_rank = held[r];
    (*hellos)[r].held_world = world;
    (*hellos)[r].held_whole = 1;
  }
}

Way WayOf(const std::vector<NcclHello>& hellos) {
  const auto join = PlanNcclJoin(hellos);
  EXPECT_TRUE(join.ok()) << join.status();
  return join->way;
}

TEST(NcclJoin, BeginsAnewWithoutAnythingHeld) { EXPECT_EQ(WayOf(Hellos(3)), Way::kNew); }

TEST(NcclJoin, SurvivorsShrinkByThoseWhoAreGone) {
  auto hellos = Hellos(3);
  Hold(&hellos, {0, 2, 3}, 5);
  const auto join = PlanNcclJoin(hellos);
  ASSERT_TRUE(join.ok());
  EXPECT_EQ(join->way, Way::kShrink);
  EXPECT_THAT(join->excluded, ElementsAre(1, 4));
  for (NcclHello& hello : hellos) hello.held_whole = 0;  // revoked: all the same
  EXPECT_EQ(WayOf(hellos), Way::kShrink);
}

TEST(NcclJoin, DoesNotShrinkWhatDiffers) {
  auto hellos = Hellos(2);
  Hold(&hellos, {1, 0}, 3);  // dealt anew
  EXPECT_EQ(WayOf(hellos), Way::kNew);
  Hold(&hellos, {0, 1}, 2);  // nobody is gone
  EXPECT_EQ(WayOf(hellos), Way::kNew);
  Hold(&hellos, {0, 1}, 3);
  hellos[1].held_generation = 3;
  EXPECT_EQ(WayOf(hellos), Way::kNew);
  Hold(&hellos, {0, 1}, 3);
  hellos[1].can_shrink = 0;
  EXPECT_EQ(WayOf(hellos), Way::kNew);
  Hold(&hellos, {0}, 3);  // rank 1 is new
  hellos[1] = Hellos(2)[1];
  EXPECT_EQ(WayOf(hellos), Way::kNew);
}

TEST(NcclJoin, JoinersBehindAllOldRanksAreGrownInto) {
  auto hellos = Hellos(4);
  Hold(&hellos, {0, 1}, 2);
  const auto join = PlanNcclJoin(hellos);
  ASSERT_TRUE(join.ok());
  EXPECT_EQ(join->way, Way::kGrow);
  EXPECT_EQ(join->old_world, 2);
  hellos[1].held_whole = 0;
  EXPECT_EQ(WayOf(hellos), Way::kNew);
  hellos[1].held_whole = 1;
  hellos[3].can_grow = 0;
  EXPECT_EQ(WayOf(hellos), Way::kNew);
}

TEST(NcclJoin, WindowsNeedTheSameVectorsEverywhere) {
  auto hellos = Hellos(2);
  hellos[0].windows = 1;
  EXPECT_FALSE(PlanNcclJoin(hellos)->windows);
  hellos[1].windows = 1;
  EXPECT_TRUE(PlanNcclJoin(hellos)->windows);
  hellos[1].vector_sizes = 7;
  EXPECT_FALSE(PlanNcclJoin(hellos)->windows);
}

TEST(NcclJoin, RefusesWhatCannotMeet) {
  auto hellos = Hellos(3);
  hellos[2].version = 22907;
  EXPECT_THAT(std::string(PlanNcclJoin(hellos).status().message()),
              HasSubstr("rank 0 has NCCL 2.28.9, rank 2 has 2.29.7"));
  hellos[2].version = 22803;  // the patch level may differ
  EXPECT_TRUE(PlanNcclJoin(hellos).ok());
  hellos[1].version = 0;
  EXPECT_THAT(std::string(PlanNcclJoin(hellos).status().message()),
              HasSubstr("rank 1 has no NCCL"));
  hellos = Hellos(3);
  std::strcpy(hellos[2].gpu, "GPU-0");
  EXPECT_EQ(PlanNcclJoin(hellos).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(PlanNcclJoin(hellos).status().message()),
              HasSubstr("ranks 0 and 2 share GPU-0"));
  std::strcpy(hellos[2].host, "there");
  EXPECT_TRUE(PlanNcclJoin(hellos).ok());
  std::strcpy(hellos[2].host, "here");
  hellos[2].may_share_gpu = 1;
  EXPECT_TRUE(PlanNcclJoin(hellos).ok());
}

}  // namespace
}  // namespace lockstep
