// SPDX-License-Identifier: Apache-2.0
#include "common/chaos.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::chaos {
namespace {

TEST(Chaos, TextAndBack) {
  for (const char* text :
       {"kill rank:2@step:50", "kill rank:0@step:1/reduced", "exit rank:1@step:5=3",
        "exit rank:1@step:5/committed=0", "segv rank:0@step:9", "stop rank:1@step:20/join",
        "hang rank:1@step:20", "slow rank:1:3x", "slow rank:0:2.5x", "kill coordinator@step:50",
        "kill coordinator@step:7/reduced", "abort rank:3@step:2/reduce", "grow rank:1@step:4=512",
        "grow rank:1@step:4/committed=1", "scale 2@step:50", "scale 16@step:7/reduced"}) {
    const auto parsed = ParseAll(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_EQ(parsed->size(), 1);
    EXPECT_EQ(ToString(parsed->front()), text);
  }
  const auto two = ParseAll("kill rank:2@step:50;stop rank:0@step:3/save");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(ToString(*two), "kill rank:2@step:50;stop rank:0@step:3/save");
  EXPECT_EQ((*two)[1].place, Place::kSave);
}

TEST(Chaos, SaysWhatWouldBeRight) {
  for (const char* text : {"kill rank:2",
                           "kill 2@step:50",
                           "kill rank:x@step:50",
                           "kill rank:2@50",
                           "kill rank:2@step:0",
                           "kill rank:2@step:5/nowhere",
                           "kill rank:-1@step:5",
                           "kill rank:2@step:5=3",
                           "exit rank:1@step:5=256",
                           "grow rank:1@step:5=0",
                           "grow rank:1@step:5=2000000",
                           "abort rank:1@step:5=3",
                           "slow rank:1:1x",
                           "slow rank:1",
                           "slow rank:1:3",
                           "burn rank:1@step:2",
                           "flip coordinator@step:5",
                           "kill",
                           "kill coordinator",
                           "stop coordinator@step:5",
                           "kill coordinator:1@step:5",
                           "kill coordinator@step:0",
                           "scale 2",
                           "scale 0@step:5",
                           "scale rank:1@step:5",
                           "scale 2@step:5=3",
                           "scale 2@5",
                           "scale coordinator@step:5",
                           "slow coordinator:3x"}) {
    const auto parsed = ParseAll(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(Parse("slow", "rank:1").status().message()),
              ::testing::HasSubstr("slow rank:1:3x"));
  EXPECT_THAT(std::string(Parse("slow", "rank:0:0.5x").status().message()),
              ::testing::EndsWith("write it as 'slow rank:1:3x', more than 1x"));
  EXPECT_THAT(std::string(Parse("scale", "2").status().message()),
              ::testing::HasSubstr("scale 2@step:50"));
}

TEST(Chaos, DrawnFaultsAreAFunctionOfTheSeed) {
  const Drawing drawing{.ranks = 4, .steps = 200};
  const auto one = Draw(7, 20, drawing);
  EXPECT_EQ(ToString(one), ToString(Draw(7, 20, drawing)));
  EXPECT_NE(ToString(one), ToString(Draw(8, 20, drawing)));
  ASSERT_EQ(one.size(), 20);
  std::set<int> ranks;
  int coordinators = 0;
  int64_t before = 0;
  for (const Injection& injection : one) {
    if (!injection.coordinator) ranks.insert(injection.rank);
    coordinators += injection.coordinator ? 1 : 0;
    EXPECT_GE(injection.step, before + (before > 0 ? 2 : 0));
    EXPECT_LE(injection.step, 200);
    before = injection.step;
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  EXPECT_GT(coordinators, 0);
  EXPECT_LT(coordinators, 10);
  for (const Injection& injection : Draw(7, 50, {.ranks = 4, .steps = 200, .stops = false})) {
    EXPECT_NE(injection.action, Action::kStop);
    EXPECT_NE(injection.action, Action::kScale);
  }
}

TEST(Chaos, DrawnFaultsAreTwoStepsApartHoweverManyThereAre) {
  EXPECT_EQ(MostDrawn(2), 1);
  for (const int64_t steps : {2, 3, 4, 100, 101}) {
    for (int count = 1; count <= MostDrawn(steps); ++count) {
      int64_t before = 0;
      for (const Injection& injection : Draw(7, count, {.ranks = 4, .steps = steps})) {
        EXPECT_GE(injection.step, before + 2) << count << " of " << steps;
        EXPECT_LE(injection.step, steps);
        before = injection.step;
      }
    }
  }
}

TEST(Chaos, DrawsSizesThatTheJobMayHave) {
  std::set<int> sizes;
  int at_once = 0;
  const Injection* before = nullptr;
  const auto drawn = Draw(7, 90, {.ranks = 4, .steps = 900, .least_workers = 2, .most_workers = 4});
  for (const Injection& injection : drawn) {
    if (injection.action == Action::kScale) {
      sizes.insert(injection.workers);
      at_once += before != nullptr && before->step == injection.step ? 1 : 0;
    } else if (before != nullptr) {
      EXPECT_GE(injection.step, before->step + 2);
    }
    before = &injection;
  }
  EXPECT_EQ(sizes, (std::set<int>{2, 3, 4}));
  EXPECT_GT(at_once, 3);
}

}  // namespace
}  // namespace lockstep::chaos
