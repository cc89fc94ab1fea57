// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/queue_pass.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/queue_fixture.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(QueuePassTest, AGangStartsWholeOrNotAtAll) {
  TestQueue test;
  test.Node(4);
  test.Node(4);
  test.Run({.per_node = 1}, 0);
  test.Wait({.nodes = 2, .per_node = 4});
  const Decisions decisions = test.Pass();
  EXPECT_THAT(decisions.starts, IsEmpty());
  ASSERT_TRUE(decisions.reservation.has_value());
  EXPECT_EQ(decisions.reservation->when, absl::InfiniteFuture());
}

TEST(QueuePassTest, PriorityThenRecentUseThenOrder) {
  TestQueue test;
  test.Node(2);
  test.Wait({.user = "ann", .use = 10});
  test.Wait({.user = "bob", .use = 5});
  test.Wait({.user = "bob", .use = 5});
  test.Wait({.priority = 1, .user = "ann", .use = 10});
  const Decisions decisions = test.Pass();
  EXPECT_THAT(decisions.order, ElementsAre(3, 1, 2, 0));
  EXPECT_THAT(TestQueue::Started(decisions), ElementsAre(3, 1));
}

TEST(QueuePassTest, UseDoesNotCountForOnesThatHaveWaitedForLong) {
  TestQueue test;
  test.Node(1);
  test.Wait({.user = "bob", .use = 1});
  for (const double use : {9, 8}) {
    test.queue.waiting[static_cast<size_t>(test.Wait({.user = "ann", .use = use}))].overdue = true;
  }
  EXPECT_THAT(test.Pass().order, ElementsAre(1, 2, 0));
}

// What the nodes are that the waiting job avoids.
void Avoid(TestQueue& test, int waiting, std::vector<bool> nodes) {
  Waiting& job = test.queue.waiting[static_cast<size_t>(waiting)];
  job.avoided = std::make_shared<const std::vector<bool>>(std::move(nodes));
  job.special = true;
}

TEST(QueuePassTest, NodesThatAJobAvoidsComeAfterTheOthers) {
  TestQueue test;
  test.Node(1);
  test.Node(1);
  for (int i = 0; i < 2; ++i) Avoid(test, test.Wait({}), {true, false});
  const Decisions decisions = test.Pass();
  ASSERT_THAT(TestQueue::Started(decisions), ElementsAre(0, 1));
  EXPECT_THAT(decisions.starts[0].placement, ElementsAre(Pair(1, 1)));
  EXPECT_THAT(decisions.starts[1].placement, ElementsAre(Pair(0, 1)));
}

TEST(QueuePassTest, AnElasticJobStartsSmallerRatherThanWhereItAvoidsTo) {
  TestQueue test;
  test.Node(2);
  test.Node(1);
  Avoid(test, test.Wait({.per_node = 2, .least = 1}), {true, false});
  EXPECT_THAT(test.Pass().starts, IsEmpty());
  test.queue.now += test.rules.elastic_wait;
  const Decisions decisions = test.Pass();
  ASSERT_THAT(TestQueue::Started(decisions), ElementsAre(0));
  EXPECT_THAT(decisions.starts[0].placement, ElementsAre(Pair(1, 1)));
}

TEST(QueuePassTest, AnElasticJobDoesNotWaitForEverWhereItAvoidsAllNodes) {
  TestQueue test;
  test.Node(1);
  Avoid(test, test.Wait({.per_node = 2, .least = 1}), {true});
  EXPECT_THAT(test.Pass().starts, IsEmpty());
  test.queue.now += test.rules.elastic_wait;
  EXPECT_THAT(TestQueue::Started(test.Pass()), ElementsAre(0));
}

TEST(QueuePassTest, AShortJobStartsBeforeOneThatWaitsForRoom) {
  TestQueue test;
  test.Node(4);
  test.Run({.per_node = 3, .limit = absl::Hours(2)}, 0, absl::Hours(1));
  const int large = test.Wait({.per_node = 4});
  test.Wait({.limit = absl::Hours(2)});  // would delay it
  test.Wait({});                         // may never end
  const int fits = test.Wait({.limit = absl::Minutes(60)});
  const Decisions decisions = test.Pass();
  EXPECT_THAT(TestQueue::Started(decisions), ElementsAre(fits));
  ASSERT_TRUE(decisions.reservation.has_value());
  EXPECT_EQ(decisions.reservation->waiting, large);
  EXPECT_EQ(decisions.reservation->when, test.queue.now + absl::Hours(1));
}

TEST(QueuePassTest, WhatTheReservationLeavesOverIsForAnyJob) {
  TestQueue test;
  test.Node(4);
  test.Node(4);
  test.Run({.per_node = 3}, 0);
  test.Run({.per_node = 2}, 1);
  test.Wait({.per_node = 4});  // gets the first node, of the oldest job
  const int other = test.Wait({.per_node = 2});
  test.Wait({.per_node = 1});
  const Decisions decisions = test.Pass();
  ASSERT_TRUE(decisions.reservation.has_value());
  EXPECT_THAT(decisions.reservation->placement, ElementsAre(Pair(0, 4)));
  EXPECT_THAT(TestQueue::Started(decisions), ElementsAre(other));
}

TEST(QueuePassTest, OneThatWouldNotFitAnEmptyClusterHoldsNobodyUp) {
  TestQueue test;
  test.Node(4);
  test.Wait({.nodes = 2, .per_node = 4});
  const int small = test.Wait({});
  const Decisions decisions = test.Pass();
  EXPECT_THAT(TestQueue::Started(decisions), ElementsAre(small));
  EXPECT_FALSE(decisions.reservation.has_value());
}

TEST(QueuePassTest, ANodeThatIsExpectedBackCountsForTheOneThatWaitsForIt) {
  TestQueue test;
  test.Node(4);
  NodeFacts& away = test.queue.cluster.nodes[static_cast<size_t>(test.Node(4))];
  away.open = false;
  away.awaited_until = test.queue.now + absl::Seconds(20);
  const int large = test.Wait({.nodes = 2, .per_node = 4});
  test.Wait({});
  const int brief = test.Wait({.limit = absl::Seconds(20)});
  Decisions decisions = test.Pass();
  EXPECT_THAT(TestQueue::Started(decisions), ElementsAre(brief));
  ASSERT_TRUE(decisions.reservation.has_value());
  EXPECT_EQ(decisions.reservation->waiting, large);
  EXPECT_EQ(decisions.reservation->when, away.awaited_until);

  test.queue.now = away.awaited_until;
  decisions = test.Pass();
  EXPECT_FALSE(decisions.reservation.has_value());
  EXPECT_FALSE(decisions.starts.empty());
}

TEST(QueuePassTest, WithoutBackfillNobodyOvertakes) {
  TestQueue test;
  test.rules.backfill = false;
  test.Node(4);
  test.Run({.per_node = 3, .limit = absl::Hours(2)}, 0);
  test.Wait({.per_node = 4});
  test.Wait({.limit = absl::Minutes(1)});
  EXPECT_THAT(test.Pass().starts, IsEmpty());
}

TEST(QueuePassTest, QuotasOfSlotsGpusAndJobs) {
  TestQueue test;
  test.Node(8, 4);
  test.rules.quotas["ann"] = {.slots = 3};
  test.rules.quotas["bob"] = {.jobs = 1};
  test.rules.quota = {.gpus = 1};
  test.Run({.per_node = 2, .user = "ann"}, 0);
  test.Wait({.per_node = 2, .user = "ann"});
  const int ann = test.Wait({.user = "ann"});
  const int bob = test.Wait({.user = "bob"});
  test.Wait({.user = "bob"});
  const int eve = test.Wait({.user = "eve"});
  const int eve2 = test.Wait({.user = "eve"});
  for (const int place : {eve, eve2}) {
    test.asks[static_cast<size_t>(place + 1)].gpus = Ask::Gpus::kAlways;
  }
  const Decisions decisions = test.Pass();
  EXPECT_THAT(TestQueue::Started(decisions), ElementsAre(ann, bob, eve));
  EXPECT_FALSE(decisions.reservation.has_value());  // no room helps those
  EXPECT_THAT(WhyOverQuota(test.rules, test.queue.running, *test.queue.waiting[0].ask),
              HasSubstr("ann has 2 of 3 slots and asks for 2"));
}

TEST(QueuePassTest, AnArrayRunsSoManyAtOnce) {
  TestQueue test;
  test.Node(8);
  for (int i = 0; i < 4; ++i) test.queue.waiting[static_cast<size_t>(test.Wait({}))].array = 0;
  test.queue.array_left = {2};
  const int other = test.Wait({});
  EXPECT_THAT(TestQueue::Started(test.Pass()), ElementsAre(0, 1, other));
}

TEST(QueuePassTest, StopsAsFewOfLowerPriorityAsWillDo) {
  TestQueue test;
  test.Node(4);
  test.Node(4);
  test.Run({.per_node = 4, .priority = 1}, 0);
  const int old = test.Run({.per_node = 2}, 1, absl::Hours(2));
  const int young = test.Run({.per_node = 2}, 1, absl::Hours(1));
  test.Wait({.per_node = 2, .priority = 5});
  Decisions decisions = test.Pass();
  EXPECT_THAT(decisions.stop, ElementsAre(young));
  ASSERT_TRUE(decisions.reservation.has_value());
  EXPECT_EQ(decisions.reservation->when, test.queue.now);
  // It is on its way: nobody else is asked.
  test.queue.running[static_cast<size_t>(young)].leaving = true;
  EXPECT_THAT(test.Pass().stop, IsEmpty());
  test.Wait({.per_node = 4, .priority = 6});
  EXPECT_THAT(test.Pass().stop, ElementsAre(old));
}

TEST(QueuePassTest, StopsNobodyOfTheSamePriorityOrInVain) {
  TestQueue test;
  test.Node(4);
  test.Run({.per_node = 2, .priority = 5}, 0);
  test.Run({.per_node = 2}, 0);
  test.Wait({.per_node = 4, .priority = 5});
  EXPECT_THAT(test.Pass().stop, IsEmpty());
}

TEST(QueuePassTest, ElasticJobsShrinkBeforeAnyStops) {
  TestQueue test;
  test.Node(4);
  test.Node(4);
  test.Run({.per_node = 4}, 0);
  const int elastic = test.Run({.per_node = 4}, 1);
  test.queue.running[static_cast<size_t>(elastic)].spare.assign(3, Taken{1, 1, 0});
  test.Wait({.per_node = 2, .priority = 1});
  const Decisions decisions = test.Pass();
  EXPECT_THAT(decisions.stop, IsEmpty());
  EXPECT_THAT(decisions.shrink, ElementsAre(Pair(elastic, ElementsAre(0, 1))));
}

TEST(QueuePassTest, AShortJobDoesNotStartWhereRoomIsBeingMade) {
  TestQueue test;
  test.Node(4);
  test.Node(4);
  test.Run({.per_node = 3}, 0);
  const int elastic = test.Run({.per_node = 4, .limit = absl::Hours(1)}, 1);
  test.queue.running[static_cast<size_t>(elastic)].spare.assign(3, Taken{1, 1, 0});
  test.Wait({.nodes = 2, .per_node = 1, .priority = 1});
  test.Wait({.per_node = 1, .limit = absl::Minutes(10)});
  const Decisions decisions = test.Pass();
  EXPECT_THAT(decisions.shrink, ElementsAre(Pair(elastic, ElementsAre(0))));
  EXPECT_THAT(TestQueue::Started(decisions), IsEmpty());
  ASSERT_TRUE(decisions.reservation.has_value());
  EXPECT_EQ(decisions.reservation->when, test.queue.now);
}

TEST(QueuePassTest, NodesOfOneRackWhereTheyDo) {
  TestQueue test;
  for (const int rack : {1, 2, 1, 2, 2}) test.Node(4, 0, rack);
  test.Wait({.nodes = 2, .per_node = 4});
  test.Wait({.nodes = 3, .per_node = 4});
  const Decisions decisions = test.Pass();
  ASSERT_EQ(decisions.starts.size(), 2u);
  EXPECT_THAT(decisions.starts[0].placement, ElementsAre(Pair(0, 4), Pair(2, 4)));
  EXPECT_THAT(decisions.starts[1].placement, ElementsAre(Pair(1, 4), Pair(3, 4), Pair(4, 4)));
}

TEST(QueuePassTest, FewRacksWhereOneIsTooSmall) {
  TestQueue test;
  for (const int rack : {1, 2, 3, 3, 1}) test.Node(4, 0, rack);
  test.Node(4, 0, 3);
  test.Wait({.nodes = 4, .per_node = 4});
  const Decisions decisions = test.Pass();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].placement,
              ElementsAre(Pair(0, 4), Pair(2, 4), Pair(3, 4), Pair(5, 4)));
}

TEST(QueuePassTest, AnElasticJobWaitsAMomentForAllItsWorkers) {
  TestQueue test;
  test.Node(4);
  test.Run({.per_node = 2}, 0);
  test.Wait({.per_node = 4, .least = 1});
  EXPECT_THAT(test.Pass().starts, IsEmpty());
  const absl::Time at = test.queue.waiting[0].starts_at;
  EXPECT_EQ(at, test.queue.now + test.rules.elastic_wait);
  test.queue.now = at;
  const Decisions decisions = test.Pass();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].placement, ElementsAre(Pair(0, 2)));
}

TEST(QueuePassTest, LabelsLeaveNodesOut) {
  TestQueue test;
  test.Node(4);
  test.Node(4);
  test.queue.cluster.nodes[1].labels["gpu"] = "h100";
  const int place = test.Wait({.per_node = 1});
  Ask& ask = test.asks.back();
  ask.labels["gpu"] = "h100";
  SetShape(ask);
  test.queue.waiting[static_cast<size_t>(place)].barred = BarredByLabels(test.queue.cluster, ask);
  const Decisions decisions = test.Pass();
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_THAT(decisions.starts[0].placement, ElementsAre(Pair(1, 1)));
}

TEST(QueuePassTest, AForecastTakesTimeLimitsAtTheirWord) {
  TestQueue test;
  test.Node(4);
  test.Run({.per_node = 4, .limit = absl::Hours(1)}, 0);
  test.Wait({.per_node = 4, .limit = absl::Hours(2)});
  const int last = test.Wait({.per_node = 4});
  std::string why;
  EXPECT_EQ(Forecast(test.rules, test.queue, last, &why), test.queue.now + absl::Hours(3));
  test.queue.running[0].ends = absl::InfiniteFuture();
  EXPECT_EQ(Forecast(test.rules, test.queue, last, &why), absl::InfiniteFuture());
  EXPECT_THAT(why, HasSubstr("without a time limit"));
}

TEST(QueuePassTest, AForecastBehindOneThatWaitsForANodeIsWhenThatIsLost) {
  TestQueue test;
  test.Node(4);
  NodeFacts& away = test.queue.cluster.nodes[static_cast<size_t>(test.Node(4))];
  away.open = false;
  away.awaited_until = test.queue.now + absl::Seconds(20);
  test.Wait({.nodes = 2, .per_node = 4});
  const int small = test.Wait({});
  std::string why;
  EXPECT_EQ(Forecast(test.rules, test.queue, small, &why), away.awaited_until) << why;
}

TEST(QueuePassTest, AForecastOfAnArrayCountsWhoHasEnded) {
  TestQueue test;
  test.Node(4);
  test.queue.array_left = {1};
  int last = 0;
  for (int i = 0; i < 3; ++i) {
    last = test.Wait({.limit = absl::Hours(1)});
    test.queue.waiting[static_cast<size_t>(last)].array = 0;
  }
  std::string why;
  EXPECT_EQ(Forecast(test.rules, test.queue, last, &why), test.queue.now + absl::Hours(2)) << why;
  // One of it runs already.
  test.queue.array_left = {0};
  test.queue.running[static_cast<size_t>(test.Run({.limit = absl::Hours(1)}, 0))].array = 0;
  EXPECT_EQ(Forecast(test.rules, test.queue, last, &why), test.queue.now + absl::Hours(3)) << why;
}

// The coordinator does nothing else meanwhile.
TEST(QueuePassTest, AForecastOfALargeClusterIsGivenUpSooner) {
  const auto is_known = [](int nodes, int before, int ends) {
    TestQueue test;
    for (int i = 0; i < nodes; ++i) {
      test.Node(1);
      test.Run({.limit = absl::Minutes(1 + i)}, i);
    }
    for (int i = 0; i < before; ++i) test.Wait({.nodes = 5000, .priority = 1});
    const int place = test.Wait({.nodes = ends});
    std::string why;
    const absl::Time starts = Forecast(test.rules, test.queue, place, &why);
    EXPECT_EQ(why, starts == absl::InfiniteFuture() ? "too much happens before" : "");
    return starts == test.queue.now + absl::Minutes(ends);
  };
  EXPECT_TRUE(is_known(150, 150, 150));
  EXPECT_TRUE(is_known(1000, 0, 150));
  EXPECT_TRUE(is_known(1000, 1000, 3));
  EXPECT_FALSE(is_known(1000, 1000, 150));
}

TEST(CapacityTest, WhatIsGivenBackIsWhatWasTaken) {
  TestQueue test;
  test.Node(8, 4);
  const auto take_from = [&](int first) {
    Ask& ask = test.MakeAsk({.per_node = 2});
    ask.gpus = Ask::Gpus::kAlways;
    ask.first_gpu = first;
    return Take(ask, test.queue.cluster, 0, 2, test.queue.cluster.free);
  };
  take_from(0);
  const Taken second = take_from(2);
  Give(test.queue.cluster, second, test.queue.cluster.free);
  EXPECT_EQ(test.queue.cluster.free[0].gpus, 0b1100u);
}

TEST(CapacityTest, TakesGpusFromTheOneThatIsAskedFor) {
  TestQueue test;
  test.Node(8, 4);
  Ask& ask = test.MakeAsk({.per_node = 2});
  ask.gpus = Ask::Gpus::kAlways;
  ask.first_gpu = 1;
  const NodeFacts& node = test.queue.cluster.nodes[0];
  std::vector<Free>& free = test.queue.cluster.free;
  EXPECT_EQ(Room(ask, node, free[0]), 3);
  const Taken hold = Take(ask, test.queue.cluster, 0, 2, free);
  EXPECT_EQ(hold.gpus, 2);
  EXPECT_EQ(free[0].gpus, 0b1001u);
  EXPECT_EQ(Room(ask, node, free[0]), 1);
  Give(test.queue.cluster, hold, free);
  EXPECT_EQ(free[0].gpus, 0b1111u);
}

}  // namespace
}  // namespace lockstep::coordinator
