// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/mesh.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/natural_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Ids = std::set<std::string>;

std::vector<MeshHost> Hosts(int count) {
  std::vector<MeshHost> hosts;
  for (int i = 1; i <= count; ++i) hosts.push_back({absl::StrCat("h", i), 1, false});
  return hosts;
}

std::set<CutPair> Cuts(const std::vector<CutPair>& pairs) {
  std::set<CutPair> cuts;
  for (const auto& [a, b] : pairs) cuts.insert(MakeCut(a, b));
  return cuts;
}

TEST(MeshTest, OfTwoTheHigherIdGoes) {
  EXPECT_THAT(HostsToGo(Hosts(2), Cuts({{"h2", "h1"}})), ElementsAre("h2"));
  EXPECT_THAT(HostsToGo(Hosts(3), Cuts({{"h1", "h3"}})), ElementsAre("h3"));
  // As numbers, not as letters.
  EXPECT_THAT(HostsToGo(Hosts(10), Cuts({{"h10", "h9"}})), ElementsAre("h10"));
  EXPECT_THAT(HostsToGo(Hosts(3), {}), IsEmpty());
}

TEST(MeshTest, TheHostThatNobodyReachesGoes) {
  EXPECT_THAT(HostsToGo(Hosts(4), Cuts({{"h1", "h2"}, {"h1", "h3"}, {"h1", "h4"}})),
              ElementsAre("h1"));
  // Two such hosts.
  EXPECT_THAT(HostsToGo(Hosts(5), Cuts({{"h1", "h3"}, {"h1", "h4"}, {"h2", "h4"}, {"h2", "h5"}})),
              ElementsAre("h1", "h2"));
  // A chain: the one in the middle of each two cuts, not the one with the most first.
  EXPECT_THAT(HostsToGo(Hosts(5), Cuts({{"h1", "h2"}, {"h2", "h3"}, {"h3", "h4"}, {"h4", "h5"}})),
              ElementsAre("h2", "h4"));
}

TEST(MeshTest, AsManyWorkersStayAsCan) {
  std::vector<MeshHost> hosts = {{"a", 1, false}, {"b", 3, false}};
  EXPECT_THAT(HostsToGo(hosts, Cuts({{"a", "b"}})), ElementsAre("a"));
  // Two hosts with one each weigh less than one with three.
  hosts.push_back({"c", 1, false});
  EXPECT_THAT(HostsToGo(hosts, Cuts({{"a", "b"}, {"b", "c"}})), ElementsAre("a", "c"));
  // Of equal weight the fewer hosts go.
  hosts[1].workers = 2;
  EXPECT_THAT(HostsToGo(hosts, Cuts({{"a", "b"}, {"b", "c"}})), ElementsAre("b"));
}

TEST(MeshTest, SomebodyWhoHoldsTheStateStays) {
  const std::vector<MeshHost> hosts = {{"a", 1, true}, {"b", 3, false}};
  EXPECT_THAT(HostsToGo(hosts, Cuts({{"a", "b"}})), ElementsAre("b"));
  const std::vector<MeshHost> third = {{"a", 1, true}, {"b", 3, false}, {"c", 1, true}};
  EXPECT_THAT(HostsToGo(third, Cuts({{"a", "b"}})), ElementsAre("a")) << "c holds it too";
}

TEST(MeshTest, WhatIsLeftIsAMesh) {
  // Every graph on five hosts.
  const std::vector<MeshHost> hosts = Hosts(5);
  std::vector<CutPair> edges;
  for (int a = 1; a <= 5; ++a) {
    for (int b = a + 1; b <= 5; ++b)
      edges.push_back(MakeCut(absl::StrCat("h", a), absl::StrCat("h", b)));
  }
  for (unsigned graph = 0; graph < 1U << edges.size(); ++graph) {
    std::set<CutPair> cuts;
    for (size_t i = 0; i < edges.size(); ++i) {
      if ((graph >> i & 1) != 0) cuts.insert(edges[i]);
    }
    const Ids gone = HostsToGo(hosts, cuts);
    for (const CutPair& cut : cuts) EXPECT_TRUE(gone.count(cut.first) + gone.count(cut.second) > 0);
    EXPECT_LT(gone.size(), 5u);
  }
}

TEST(MeshTest, ManyCutsAreDecidedToo) {
  std::set<CutPair> cuts;
  for (int i = 2; i <= 40; ++i) cuts.insert(MakeCut("h1", absl::StrCat("h", i)));
  EXPECT_THAT(HostsToGo(Hosts(40), cuts), ElementsAre("h1"));
  for (int i = 2; i <= 40; i += 2)
    cuts.insert(MakeCut(absl::StrCat("h", i), absl::StrCat("h", i + 1)));
  for (const Ids gone = HostsToGo(Hosts(40), cuts); const CutPair& cut : cuts) {
    if (cut.second == "h41") continue;  // no host of the job
    EXPECT_TRUE(gone.count(cut.first) + gone.count(cut.second) > 0) << cut.first << cut.second;
  }
}

TEST(NaturalOrderTest, NumbersCountAsNumbers) {
  const std::vector<std::string> sorted = {"",     "a",      "a1",     "a01", "a2", "a10",
                                           "a10b", "a10b2x", "a10b10", "b",   "b-1"};
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = 0; j < sorted.size(); ++j) {
      const bool zeros = sorted[i] == "a01" || sorted[j] == "a01";
      if (zeros) continue;
      EXPECT_EQ(NaturalLess(sorted[i], sorted[j]), i < j) << sorted[i] << " " << sorted[j];
    }
  }
  EXPECT_NE(NaturalLess("a01", "a1"), NaturalLess("a1", "a01"));
  EXPECT_FALSE(NaturalLess("h2", "h2"));
  EXPECT_TRUE(NaturalLess("h99999999999999999999", "h100000000000000000000"));
}

}  // namespace
}  // namespace lockstep::coordinator
