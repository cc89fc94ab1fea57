// SPDX-License-Identifier: Apache-2.0
#include "worker/step/fault_injector.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

namespace lockstep::worker {
namespace {

class SlowWorkerTest : public testing::Test {
 protected:
  std::unique_ptr<FaultInjector> Injector(int slot) {
    ::setenv(chaos::kVariable, "slow rank:1:21x", 1);
    auto injector = FaultInjector::FromEnvironment(slot, testing::TempDir(), "j1");
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

TEST(FaultInjectorTest, HappensOnceInAJob) {
  const std::string folder = testing::TempDir() + "/run";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  unsigned char state = 0;
  const auto reach = [&](const std::string& job) {
    ::setenv(chaos::kVariable, "flip rank:0@step:3", 1);
    auto injector = FaultInjector::FromEnvironment(0, folder, job);
    ::unsetenv(chaos::kVariable);
    ASSERT_TRUE(injector.ok()) << injector.status();
    (*injector)->Expose(&state);
    (*injector)->At(chaos::Place::kStart, 3);
  };
  reach("a1");
  EXPECT_EQ(state, 1);
  reach("a1");  // a later life of the worker
  EXPECT_EQ(state, 1);
  reach("b2");  // another job, in the same folder
  EXPECT_EQ(state, 0);
}

}  // namespace
}  // namespace lockstep::worker
