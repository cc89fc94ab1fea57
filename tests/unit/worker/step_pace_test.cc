// SPDX-License-Identifier: Apache-2.0
#include "worker/step/step_pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

TEST(StepPaceTest, AStepTakesItsTimeAtLeast) {
  FakeClock clock;
  StepPace pace(&clock, absl::Milliseconds(2));
  const absl::Time begin = clock.Now();
  for (int step = 0; step < 5; ++step) pace.BeginStep();
  EXPECT_EQ(clock.Now() - begin, absl::Milliseconds(8));
  clock.Advance(absl::Milliseconds(7));  // one that is slow is not made up for
  const absl::Time late = clock.Now();
  pace.BeginStep();
  EXPECT_EQ(clock.Now(), late);
  pace.BeginStep();
  EXPECT_EQ(clock.Now() - late, absl::Milliseconds(2));
}

TEST(StepPaceTest, AFileEndsIt) {
  FakeClock clock;
  const std::string file = absl::StrCat(testing::TempDir(), "/step_pace_test-", ::getpid());
  ::setenv(StepPace::kVariable, "2ms", 1);
  ::setenv(StepPace::kUntil, file.c_str(), 1);
  absl::StatusOr<StepPace> pace = StepPace::FromEnvironment(&clock);
  ::unsetenv(StepPace::kVariable);
  ::unsetenv(StepPace::kUntil);
  ASSERT_TRUE(pace.ok()) << pace.status();
  const absl::Time begin = clock.Now();
  for (int step = 0; step < 3; ++step) pace->BeginStep();
  EXPECT_EQ(clock.Now() - begin, absl::Milliseconds(4));
  std::ofstream(file) << "";
  for (int step = 0; step < 3; ++step) pace->BeginStep();
  EXPECT_EQ(clock.Now() - begin, absl::Milliseconds(4));
  ASSERT_EQ(::unlink(file.c_str()), 0);
  pace->BeginStep();
  EXPECT_EQ(clock.Now() - begin, absl::Milliseconds(4)) << "for good";
}

TEST(StepPaceTest, TheEnvironmentSaysHowLong) {
  FakeClock clock;
  const auto steps = [&](const char* text) {
    text == nullptr ? ::unsetenv(StepPace::kVariable) : ::setenv(StepPace::kVariable, text, 1);
    absl::StatusOr<StepPace> pace = StepPace::FromEnvironment(&clock);
    ::unsetenv(StepPace::kVariable);
    return pace;
  };
  const absl::Time begin = clock.Now();
  for (const char* text : {"3ms", static_cast<const char*>(nullptr)}) {
    absl::StatusOr<StepPace> pace = steps(text);
    ASSERT_TRUE(pace.ok());
    pace->BeginStep();
    pace->BeginStep();
    EXPECT_EQ(clock.Now() - begin, absl::Milliseconds(3));
  }
  for (const char* text : {"", "soon", "-2ms"}) {
    EXPECT_THAT(std::string(steps(text).status().message()), HasSubstr("LOCKSTEP_STEP_TIME is '"));
  }
}

}  // namespace
}  // namespace lockstep::worker
