// SPDX-License-Identifier: Apache-2.0
#include "worker/state/host_deal.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

constexpr int kShards = 48;

// A member as the deals of a history know it.
struct Member {
  std::string host;
  std::vector<bool> holds = std::vector<bool>(kShards, false);
};
using Members = std::vector<Member>;

std::vector<int> HostsOf(const Members& members) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const Member& member : members) {
    hosts.push_back(numbers.emplace(member.host, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

std::vector<int> SizesOf(const std::vector<int>& hosts) {
  std::vector<int> sizes;
  for (const int host : hosts) {
    if (static_cast<size_t>(host) >= sizes.size()) sizes.resize(static_cast<size_t>(host) + 1, 0);
    ++sizes[static_cast<size_t>(host)];
  }
  return sizes;
}

// Deals, and looks at what the deal promises. Returns how many copies moved.
int Deal(Members* members) {
  const std::vector<int> hosts = HostsOf(*members);
  SCOPED_TRACE(absl::StrJoin(hosts, " "));
  const int world = static_cast<int>(hosts.size());
  ShardHolders before(kShards);
  for (int rank = 0; rank < world; ++rank) {
    for (size_t shard = 0; shard < kShards; ++shard) {
      if ((*members)[static_cast<size_t>(rank)].holds[shard]) before[shard].push_back(rank);
    }
  }
  const ShardHolders after = DealOverHosts(before, hosts);
  const size_t count = SizesOf(hosts).size();
  std::vector<int> loads(hosts.size(), 0);
  int moved = 0;
  for (Member& member : *members) std::fill(member.holds.begin(), member.holds.end(), false);
  for (size_t shard = 0; shard < kShards; ++shard) {
    const std::vector<int>& ranks = after[shard];
    EXPECT_EQ(ranks.size(), static_cast<size_t>(std::min(world, 2)));
    EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    if (count > 1 && ranks.size() == 2) {
      EXPECT_NE(hosts[static_cast<size_t>(ranks[0])], hosts[static_cast<size_t>(ranks[1])]);
    }
    for (const int rank : ranks) {
      ++loads[static_cast<size_t>(rank)];
      (*members)[static_cast<size_t>(rank)].holds[shard] = true;
      const auto& had = before[shard];
      moved += std::find(had.begin(), had.end(), rank) == had.end() ? 1 : 0;
    }
  }
  for (const int load : loads) {
    EXPECT_LE(load, MostHeldOverHosts(kShards, SizesOf(hosts))) << absl::StrJoin(loads, " ");
  }
  return moved;
}

Members On(const std::vector<std::string>& hosts) {
  Members members;
  for (const std::string& host : hosts) members.push_back({host});
  return members;
}

TEST(HostDealTest, TheTwoHoldersAreOnTwoHosts) {
  for (const std::vector<std::string>& hosts :
       std::vector<std::vector<std::string>>{{"a"},
                                             {"a", "b"},
                                             {"a", "b", "b"},
                                             {"a", "a", "b", "b"},
                                             {"a", "b", "a", "b"},
                                             {"a", "a", "a", "b"},
                                             {"a", "b", "c"},
                                             {"a", "a", "a", "a", "b", "c"},
                                             {"a", "a", "a", "b", "b", "c", "d"},
                                             {"c", "a", "b", "b", "b", "b", "b", "a"}}) {
    Members members = On(hosts);
    Deal(&members);
    EXPECT_EQ(Deal(&members), 0) << "a deal that is right stays";
  }
}

TEST(HostDealTest, SharesAreEvenUnlessAHostHasMoreThanHalfOfTheRanks) {
  const auto most = [](const std::vector<int>& sizes) { return MostHeldOverHosts(kShards, sizes); };
  EXPECT_EQ(most({4}), 24);
  EXPECT_EQ(most({1, 1}), 48);
  EXPECT_EQ(most({2, 2}), 24);
  EXPECT_EQ(most({4, 4}), 12);
  EXPECT_EQ(most({2, 2, 2}), 16);
  EXPECT_EQ(most({1, 1, 1, 1}), 24);
  EXPECT_EQ(most({2, 1, 1}), 24);
  EXPECT_EQ(most({3, 1}), 48);
  EXPECT_EQ(most({4, 1, 1}), 24);
}

TEST(HostDealTest, ALostHostCostsNoShardAndLittleMoves) {
  for (const std::string lost : {"a", "b", "c"}) {
    Members members = On({"a", "a", "b", "b", "c", "c"});
    Deal(&members);
    std::erase_if(members, [&](const Member& member) { return member.host == lost; });
    for (size_t shard = 0; shard < kShards; ++shard) {
      EXPECT_TRUE(std::any_of(members.begin(), members.end(),
                              [&](const Member& member) { return member.holds[shard]; }));
    }
    // What the host had is copied, no more.
    EXPECT_EQ(Deal(&members), 32);
    members.push_back({"d"});
    members.push_back({"d"});
    EXPECT_LE(Deal(&members), 32 + 3) << "the newcomers' share";
  }
}

TEST(HostDealTest, ARankThatIsReplacedGetsItsShareAgain) {
  Members members = On({"a", "a", "b", "b"});
  Deal(&members);
  members.erase(members.begin() + 1);
  EXPECT_EQ(Deal(&members), 24);  // the host's other rank has them now
  members.push_back({"a"});
  EXPECT_EQ(Deal(&members), 24);
}

TEST(HostDealTest, OneHostThatBecomesTwoAndBack) {
  Members members = On({"a", "a", "a", "a"});
  Deal(&members);
  members.push_back({"b"});
  Deal(&members);
  members.push_back({"b"});
  Deal(&members);
  std::erase_if(members, [](const Member& member) { return member.host == "a"; });
  Deal(&members);
}

TEST(HostDealTest, AnyHistoryEndsInALegalDeal) {
  uint32_t random = 7;
  const auto draw = [&](uint32_t below) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % below;
  };
  Members members = On({"a", "a", "b", "b"});
  Deal(&members);
  for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) {
    const uint32_t what = draw(5);
    if (what == 0 && members.size() > 1) {
      const std::string host = members[draw(static_cast<uint32_t>(members.size()))].host;
      std::erase_if(members, [&](const Member& member) { return member.host == host; });
    } else if (what < 3 && members.size() > 1) {
      members.erase(members.begin() + draw(static_cast<uint32_t>(members.size())));
    }
    if (members.empty() || (what >= 3 && members.size() < 12)) {
      members.insert(members.begin() + draw(static_cast<uint32_t>(members.size()) + 1),
                     {std::string(1, static_cast<char>('a' + draw(5)))});
    }
    Deal(&members);
  }
}

}  // namespace
}  // namespace lockstep::worker
