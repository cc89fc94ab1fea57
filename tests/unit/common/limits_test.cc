// SPDX-License-Identifier: Apache-2.0
#include "common/limits.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LimitsTest, TheLowOneIsNamed) {
  EXPECT_TRUE(CheckLimits(Limits(), 64, true).ok());
  const auto message = [](const Limits& limits, int workers) {
    const absl::Status status = CheckLimits(limits, workers, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.open_files = 64}, 1), HasSubstr("64 are allowed here: raise the limit "
                                                        "(ulimit -n)"));
  EXPECT_THAT(message({.file_bytes = 1 << 10}, 1), HasSubstr("ulimit -f"));
  EXPECT_THAT(message({.address_bytes = 1 << 20}, 1), HasSubstr("ulimit -v"));
  EXPECT_THAT(message({.data_bytes = 120 << 20}, 1), HasSubstr("262144 KiB of data each and 122880 "
                                                               "are allowed here: raise the limit "
                                                               "(ulimit -d)"));
  EXPECT_THAT(message({.processes = 10}, 2), AllOf(HasSubstr("2 workers"), HasSubstr("ulimit -u")));
  EXPECT_TRUE(CheckLimits({.open_files = 1024}, 64, true).ok());
  EXPECT_TRUE(CheckOpenFiles(10, 158).ok());
  EXPECT_FALSE(CheckOpenFiles(10, 157).ok());
}

TEST(LimitsTest, AProgramWithoutWorkersHasLimitsToo) {
  EXPECT_TRUE(CheckProgramLimits(Limits()).ok());
  EXPECT_THAT(CheckProgramLimits({.open_files = 12}).message(), HasSubstr("ulimit -n"));
  EXPECT_THAT(CheckProgramLimits({.address_bytes = 60 << 20}).message(), HasSubstr("ulimit -v"));
}

}  // namespace
}  // namespace lockstep
