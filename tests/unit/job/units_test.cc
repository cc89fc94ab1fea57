// SPDX-License-Identifier: Apache-2.0
#include "job/units.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "job/nearest_name.h"

namespace lockstep::job {
namespace {

TEST(Units, Durations) {
  const std::vector<std::pair<std::string, int64_t>> good = {{"30s", 30'000'000'000},
                                                             {"500ms", 500'000'000},
                                                             {"5m", 300'000'000'000},
                                                             {"1h30m", 5400'000'000'000},
                                                             {"1.5s", 1'500'000'000},
                                                             {"2d", 172800'000'000'000},
                                                             {"0", 0},
                                                             {"7ns", 7}};
  for (const auto& [text, nanoseconds] : good) {
    const auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, nanoseconds) << text;
    EXPECT_EQ(*ParseDuration(FormatDuration(nanoseconds)), nanoseconds);
  }
  for (const char* text : {"", "30", "s", "-5s", "5 s", "5x", "1.s.", "99999999999999999999s",
                           "200000d", "0.5ns", "5s!", "inf"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  EXPECT_EQ(FormatDuration(90'000'000'000), "90s");
}

TEST(Units, Sizes) {
  const std::vector<std::pair<std::string, int64_t>> good = {
      {"64MiB", 64 << 20},        {"2GB", 2'000'000'000}, {"1.5KiB", 1536}, {"512B", 512}, {"0", 0},
      {"3 TiB", int64_t{3} << 40}};
  for (const auto& [text, bytes] : good) {
    const auto parsed = ParseSize(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
    EXPECT_EQ(*ParseSize(FormatSize(bytes)), bytes);
  }
  for (const char* text : {"", "64", "64M", "64mib", "-1B", "0.3B", "9999999TiB", "1MiB1"}) {
    EXPECT_FALSE(ParseSize(text).ok()) << text;
  }
  EXPECT_EQ(FormatSize(2'000'000'000), "2GB");
}

TEST(Units, Every) {
  for (const char* text : {"500 steps", "1 epoch", "30s", "never", "1 step"}) {
    ASSERT_TRUE(ParseEvery(text).ok()) << text;
    EXPECT_EQ(ParseEvery(text)->ToString(), text);
  }
  for (const char* text : {"", "0 steps", "steps", "5", "5 apples", "-1 step", "1 epoch or so"}) {
    EXPECT_FALSE(ParseEvery(text).ok()) << text;
  }
}

TEST(NearestName, FindsSlipsAndNothingElse) {
  const std::vector<std::string> names = {"global_batch", "epochs", "lr", "momentum"};
  EXPECT_EQ(NearestName("globl_batch", names), "global_batch");
  EXPECT_EQ(NearestName("Global-Batch", names), "global_batch");
  EXPECT_EQ(NearestName("epcohs", names), "epochs");
  EXPECT_EQ(NearestName("batch", names), "global_batch");
  EXPECT_EQ(NearestName("zebra", names), "");
  EXPECT_EQ(EditDistance("abcd", "abdc"), 1);
}

}  // namespace
}  // namespace lockstep::job
