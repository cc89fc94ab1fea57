// SPDX-License-Identifier: Apache-2.0
#include "common/cond_var.h"

#include <gtest/gtest.h>

#include "common/thread.h"

namespace lockstep {
namespace {

TEST(CondVarTest, ATimeoutEndsAWait) {
  absl::Mutex mu;
  CondVar changed;
  absl::MutexLock lock(&mu);
  const absl::Time begin = Clock::Real()->Now();
  EXPECT_FALSE(changed.AwaitFor(&mu, absl::Milliseconds(5), [] { return false; }));
  EXPECT_GE(Clock::Real()->Now() - begin, absl::Milliseconds(5));
}

TEST(CondVarTest, ATrueConditionIsNotWaitedFor) {
  absl::Mutex mu;
  CondVar changed;
  absl::MutexLock lock(&mu);
  EXPECT_TRUE(changed.AwaitFor(&mu, absl::ZeroDuration(), [] { return true; }));
  EXPECT_FALSE(changed.AwaitFor(&mu, absl::ZeroDuration(), [] { return false; }));
}

// Two threads hand a number to and fro; a lost wake would be seen as a wait of a minute.
TEST(CondVarTest, NoWakeIsLost) {
  constexpr int kTurns = 20000;
  absl::Mutex mu;
  CondVar changed;
  int turn = 0;
  const auto play = [&](int remainder) {
    for (;;) {
      absl::MutexLock lock(&mu);
      ASSERT_TRUE(changed.AwaitFor(&mu, absl::Minutes(1),
                                   [&] { return turn % 2 == remainder || turn >= kTurns; }));
      if (turn >= kTurns) return;
      ++turn;
      changed.NotifyAll();
    }
  };
  Thread other("other", [&] { play(1); });
  play(0);
  other.Join();
  EXPECT_EQ(turn, kTurns);
}

}  // namespace
}  // namespace lockstep
