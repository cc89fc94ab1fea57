// SPDX-License-Identifier: Apache-2.0
#include "common/step_range.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(StepRange, IsWrittenInFourWays) {
  EXPECT_FALSE(StepRange::Parse("")->Contains(1));
  EXPECT_TRUE(StepRange::Parse("all")->Contains(1));
  EXPECT_TRUE(StepRange::Parse("all")->Contains(int64_t{1} << 60));
  const StepRange some = *StepRange::Parse("10:20");
  EXPECT_FALSE(some.Contains(9));
  EXPECT_TRUE(some.Contains(10));
  EXPECT_TRUE(some.Contains(20));
  EXPECT_FALSE(some.Contains(21));
  EXPECT_FALSE(StepRange::Parse("3:")->Contains(2));
  EXPECT_TRUE(StepRange::Parse("3:")->Contains(1000000));
}

TEST(StepRange, SaysWhatWouldBeRight) {
  for (const char* text : {"5", ":", ":5", "0:5", "20:10", "a:b", "1:2:3", "-1:5", "ALL"}) {
    const auto range = StepRange::Parse(text);
    EXPECT_EQ(range.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(range.status().message()), ::testing::HasSubstr("'10:20'"));
  }
}

}  // namespace
}  // namespace lockstep
