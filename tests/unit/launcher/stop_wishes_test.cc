// SPDX-License-Identifier: Apache-2.0
// What counts as a second wish to stop, which kills.
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kTerminal = StopSignal::kTerminal;
constexpr int64_t kShell = 100, kInit = 1;  // processes

struct Sent {
  int number;
  int64_t sender = kShell;
  int after_ms = 0;  // the one before
};

// Which wish each of `signals` is that is one of its own.
std::vector<int> WishesOf(std::initializer_list<Sent> signals) {
  StopWishes wishes;
  absl::Time now = absl::UnixEpoch();
  std::vector<int> counts;
  for (const Sent& sent : signals) {
    now += absl::Milliseconds(sent.after_ms);
    const StopSignal signal{.number = sent.number, .sender = sent.sender, .read = now};
    if (wishes.Take(signal)) counts.push_back(wishes.count());
  }
  return counts;
}

TEST(StopWishesTest, ATerminalThatGoesAwayIsOneWishAndNeverASecond) {
  EXPECT_THAT(WishesOf({{SIGHUP}, {SIGHUP}}), ElementsAre(1));
  EXPECT_THAT(WishesOf({{SIGINT}, {SIGHUP}}), ElementsAre(1));
}

TEST(StopWishesTest, EveryOtherSignalOfTheSameSenderIsAWish) {
  EXPECT_THAT(WishesOf({{SIGINT}, {SIGINT, kShell, 300}, {SIGTERM}}), ElementsAre(1, 2, 3));
  EXPECT_THAT(WishesOf({{SIGHUP}, {SIGTERM}}), ElementsAre(1, 2));
  EXPECT_THAT(WishesOf({{SIGINT, kTerminal}, {SIGINT, kTerminal, 1}}), ElementsAre(1, 2));
}

// As timeout(1) does, to the program and to its process group.
TEST(StopWishesTest, WhatOneProcessSendsTwiceAtOnceIsOneWish) {
  EXPECT_THAT(WishesOf({{SIGTERM}, {SIGTERM}}), ElementsAre(1));
  EXPECT_THAT(WishesOf({{SIGTERM}, {SIGTERM, kShell, 299}, {SIGTERM, kShell, 1}}),
              ElementsAre(1, 2));
}

TEST(StopWishesTest, WhatIsForwardedIsTheSameWish) {
  EXPECT_THAT(WishesOf({{SIGINT, kTerminal}, {SIGINT, kShell, 3}}), ElementsAre(1));
  EXPECT_THAT(WishesOf({{SIGINT, kShell}, {SIGINT, kTerminal, 3}}), ElementsAre(1));
  EXPECT_THAT(WishesOf({{SIGTERM, kInit}, {SIGTERM, kShell, 999}}), ElementsAre(1));
  EXPECT_THAT(WishesOf({{SIGINT, kTerminal}, {SIGTERM, kShell, 3}}), ElementsAre(1))
      << "some forward it as another";
  EXPECT_THAT(WishesOf({{SIGINT, kTerminal}, {SIGINT, kShell, 1000}}), ElementsAre(1, 2))
      << "somebody else wants it gone";
}

TEST(StopWishesTest, ASecondCtrlCIsOneAlsoWhereItIsForwarded) {
  EXPECT_THAT(WishesOf({{SIGINT, kTerminal},
                        {SIGINT, kShell, 1},
                        {SIGINT, kTerminal, 200},
                        {SIGINT, kShell, 1}}),
              ElementsAre(1, 2));
  EXPECT_THAT(WishesOf({{SIGINT, kShell},
                        {SIGINT, kTerminal, 1},
                        {SIGINT, kTerminal, 200},
                        {SIGINT, kShell, 1}}),
              ElementsAre(1, 2));
  EXPECT_THAT(WishesOf({{SIGINT, kShell},
                        {SIGINT, kTerminal, 1},
                        {SIGINT, kShell, 150},
                        {SIGINT, kTerminal, 1}}),
              ElementsAre(1, 2));
  EXPECT_THAT(WishesOf({{SIGINT, kTerminal},
                        {SIGINT, kShell, 1},
                        {SIGINT, kShell, 150},
                        {SIGINT, kTerminal, 1},
                        {SIGINT, kTerminal, 150},
                        {SIGINT, kShell, 1}}),
              ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace lockstep::launcher
