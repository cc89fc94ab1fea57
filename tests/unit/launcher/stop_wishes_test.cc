// SPDX-License-Identifier: Apache-2.0
// What counts as a second wish to stop, which kills.
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

#include <initializer_list>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;

// Which wish each of `signals` is that is one of its own.
std::vector<int> WishesOf(std::initializer_list<int> signals) {
  StopWishes wishes;
  std::vector<int> counts;
  for (const int signal : signals) {
    if (wishes.Take(signal)) counts.push_back(wishes.count());
  }
  return counts;
}

TEST(StopWishesTest, ATerminalThatGoesAwayIsOneWishAndNeverASecond) {
  EXPECT_THAT(WishesOf({SIGHUP, SIGHUP}), ElementsAre(1));
  EXPECT_THAT(WishesOf({SIGINT, SIGHUP}), ElementsAre(1));
}

TEST(StopWishesTest, EveryOtherSignalIsAWish) {
  EXPECT_THAT(WishesOf({SIGINT, SIGINT, SIGTERM}), ElementsAre(1, 2, 3));
  EXPECT_THAT(WishesOf({SIGHUP, SIGTERM}), ElementsAre(1, 2));
}

}  // namespace
}  // namespace lockstep::launcher
