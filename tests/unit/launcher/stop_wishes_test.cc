// SPDX-License-Identifier: Apache-2.0
// What counts as a second wish to stop, which kills.
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

TEST(StopWishesTest, TerminalThatGoesAwayIsOneWish) {
  StopWishes wishes;
  EXPECT_TRUE(wishes.Take(SIGHUP));
  EXPECT_FALSE(wishes.Take(SIGHUP));
  EXPECT_EQ(wishes.count(), 1);
}

TEST(StopWishesTest, TerminalThatGoesAwayAfterCtrlCIsNoSecondWish) {
  StopWishes wishes;
  EXPECT_TRUE(wishes.Take(SIGINT));
  EXPECT_FALSE(wishes.Take(SIGHUP));
  EXPECT_EQ(wishes.count(), 1);
}

TEST(StopWishesTest, CtrlCTwiceIsTwoWishes) {
  StopWishes wishes;
  EXPECT_TRUE(wishes.Take(SIGINT));
  EXPECT_TRUE(wishes.Take(SIGINT));
  EXPECT_TRUE(wishes.Take(SIGTERM));
  EXPECT_EQ(wishes.count(), 3);
}

TEST(StopWishesTest, CtrlCAfterTheTerminalWentAwayIsASecondWish) {
  StopWishes wishes;
  EXPECT_TRUE(wishes.Take(SIGHUP));
  EXPECT_TRUE(wishes.Take(SIGTERM));
  EXPECT_EQ(wishes.count(), 2);
}

}  // namespace
}  // namespace lockstep::launcher
