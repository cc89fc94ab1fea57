// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/host_groups.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

std::vector<GroupMember> Members(const std::vector<std::string>& nodes, int shards) {
  std::vector<GroupMember> members;
  const int world = static_cast<int>(nodes.size());
  for (int r = 0; r < world; ++r) {
    GroupMember member;
    member.rank = r;
    member.node = nodes[static_cast<size_t>(r)];
    member.shards = DealShards(shards, world, r);
    members.push_back(member);
  }
  return members;
}

std::string Text(const std::vector<TreeDeal::Partial>& partials) {
  std::string text;
  for (const TreeDeal::Partial& partial : partials) {
    absl::StrAppend(&text, "[", partial.node.begin, ",", partial.node.end, ")=");
    for (const TreeDeal::Input& input : partial.inputs) {
      absl::StrAppend(&text, input.rank, ".", input.node, " ");
    }
  }
  return text;
}

TEST(HostGroupsTest, RanksOfOneNodeAreTogether) {
  const HostGroups groups = GroupByHost(Members({"b", "b", "a", "b"}, 4));
  EXPECT_THAT(groups.ranks, ElementsAre(ElementsAre(0, 1, 3), ElementsAre(2)));
  EXPECT_THAT(groups.host, ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(groups.index, ElementsAre(0, 1, 0, 2));
  EXPECT_EQ(groups.most(), 3);
  // One rank of each host speaks to a rank; who is alone speaks to all.
  EXPECT_EQ(groups.Teller(1, 3), 2);
  EXPECT_EQ(groups.Teller(0, 2), 0);
}

TEST(HostGroupsTest, AHostAddsWhatItHoldsWhole) {
  const auto members = Members({"a", "a", "b", "b"}, 4);
  const auto deal = DealTree(members, GroupByHost(members));
  ASSERT_TRUE(deal.ok()) << deal.status();
  EXPECT_EQ(Text(deal->partials[0]), "[0,2)=0.0 1.0 ");
  EXPECT_EQ(Text(deal->partials[1]), "[2,4)=2.0 3.0 ");
}

TEST(HostGroupsTest, UnequalAndMixedDeals) {
  auto members = Members({"a", "a", "a", "b"}, 8);
  auto deal = DealTree(members, GroupByHost(members));
  EXPECT_EQ(Text(deal->partials[0]), "[0,4)=0.0 1.0 [4,6)=2.0 ");
  EXPECT_EQ(Text(deal->partials[1]), "[6,8)=3.0 ");
  members = Members({"a", "b", "a", "b"}, 4);
  deal = DealTree(members, GroupByHost(members));
  EXPECT_EQ(Text(deal->partials[0]), "[0,1)=0.0 [2,3)=2.0 ");
  EXPECT_EQ(deal->most_partials(), 2);
  // Shards that do not divide: the middle rank holds two nodes.
  members = Members({"a", "b", "b"}, 5);
  deal = DealTree(members, GroupByHost(members));
  EXPECT_EQ(Text(deal->partials[0]), "[0,1)=0.0 ");
  EXPECT_EQ(Text(deal->partials[1]), "[1,2)=1.0 [2,4)=1.1 2.0 [4,5)=2.1 ");
}

TEST(HostGroupsTest, MembersMustCoverTheTree) {
  auto members = Members({"a", "b"}, 4);
  members[1].shards.begin = 3;
  EXPECT_EQ(DealTree(members, GroupByHost(members)).status().code(), absl::StatusCode::kInternal);
}

TEST(ScatterBlockTest, AnyNumberOfRanksHasAnElementInEachTurn) {
  const ScatterBlock few = FitScatterBlock(1000, 3);
  EXPECT_EQ(few.ranks, 3);
  EXPECT_EQ(few.elements, 333);
  const ScatterBlock many = FitScatterBlock(504, 512);
  EXPECT_EQ(many.ranks, 504);
  EXPECT_EQ(many.elements, 1);
}

TEST(ChunkGridTest, ChunksOfAllPiecesCoverTheSliceOnce) {
  for (const int pieces : {1, 2, 3, 5}) {
    for (const int64_t size : {0, 1, 16, 100, 1000, 4097}) {
      const ChunkGrid grid({{32, 32 + size}}, pieces, 64);
      std::vector<int> covered(static_cast<size_t>(size), 0);
      for (int64_t k = 0; k < grid.count(); ++k) {
        const ElementRange chunk = grid.chunk(k);
        ASSERT_LE(chunk.size(), 64);
        for (int64_t i = chunk.begin; i < chunk.end; ++i) ++covered[static_cast<size_t>(i - 32)];
      }
      ASSERT_THAT(covered, testing::Each(1)) << pieces << " pieces of " << size;
      // Every chunk with elements is somebody's, of however many ranks a host has.
      for (const int ranks : {1, 2, 3, 5}) {
        int64_t elements = 0;
        for (int index = 0; index < ranks; ++index) {
          for (int64_t k = grid.NextOf(0, ranks, index); k < grid.count();
               k = grid.NextOf(k + 1, ranks, index)) {
            elements += grid.chunk(k).size();
          }
        }
        ASSERT_EQ(elements, size);
      }
    }
  }
}

TEST(ChunkGridTest, SlicesOfPartsComeOneAfterAnother) {
  const ChunkGrid grid({{0, 100}, {200, 200}, {200, 216}, {400, 1000}, {1000, 1000}}, 3, 64);
  int64_t elements = 0, least = 0;
  for (int64_t k = 0; k < grid.count(); ++k) {
    const ElementRange chunk = grid.chunk(k);
    elements += chunk.size();
    if (chunk.size() == 0) continue;
    // A chunk is behind all those of earlier slices.
    const int64_t slice = chunk.begin < 100 ? 0 : chunk.begin < 216 ? 200 : 400;
    EXPECT_GE(slice, least);
    least = slice;
    const size_t at = slice == 0 ? 0 : slice == 200 ? 2 : 3;
    EXPECT_GE(chunk.begin, grid.range(at, grid.piece(k)).begin);
    EXPECT_LE(chunk.end, grid.range(at, grid.piece(k)).end);
  }
  EXPECT_EQ(elements, 716);
}

}  // namespace
}  // namespace lockstep
