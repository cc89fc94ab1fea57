// SPDX-License-Identifier: Apache-2.0
#include "worker/step/fault_injector.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>

namespace lockstep::worker {
namespace {

class SlowWorkerTest : public testing::Test {
 protected:
  std::unique_ptr<FaultInjector> Injector(int slot) {
    ::setenv(chaos::kVariable, "slow rank:1:21x", 1);
    auto injector = FaultInjector::FromEnvironment(slot, testing::TempDir());
    ::unsetenv(chaos::kVariable);
    EXPECT_TRUE(injector.ok()) << injector.status();
    return *std::move(injector);
  }

  FakeClock clock_;
};

TEST_F(SlowWorkerTest, IsSeenToMoveOnMeanwhile) {
  const absl::Time begin = clock_.Now();
  absl::Time last = begin;
  absl::Duration longest = absl::ZeroDuration();
  Injector(1)->Slow(&clock_, absl::Milliseconds(50), [&] {
    longest = std::max(longest, clock_.Now() - last);
    last = clock_.Now();
    return false;
  });
  EXPECT_EQ(clock_.Now() - begin, absl::Seconds(1));
  EXPECT_LE(longest, absl::Milliseconds(10));
  EXPECT_LE(clock_.Now() - last, absl::Milliseconds(10));
}

TEST_F(SlowWorkerTest, StopsWhenTheGenerationEnds) {
  const absl::Time begin = clock_.Now();
  Injector(1)->Slow(&clock_, absl::Hours(1), [] { return true; });
  EXPECT_EQ(clock_.Now(), begin);
}

TEST_F(SlowWorkerTest, OthersAreAsFastAsTheyAre) { EXPECT_EQ(Injector(0), nullptr); }

}  // namespace
}  // namespace lockstep::worker
