// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_lock.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;

class RunLockTest : public ::testing::Test {
 protected:
  ~RunLockTest() override { std::filesystem::remove_all(base_); }
  const std::string base_ = absl::StrCat(::testing::TempDir(), "run-lock-", ::getpid());
  const std::string folder_ = absl::StrCat(base_, "/runs/here");
};

TEST_F(RunLockTest, OneRunHasTheFolder) {
  {
    absl::StatusOr<RunLock> first = RunLock::Take(folder_);
    ASSERT_TRUE(first.ok()) << first.status();
    absl::Status refused = RunLock::Take(folder_).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("in use by another run"));
    first->Name("tiny-17");
    refused = RunLock::Take(folder_).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("in use by the run tiny-17,"));
    EXPECT_TRUE(RunLock::Take(base_ + "/runs/there").ok());
  }
  const absl::StatusOr<RunLock> next = RunLock::Take(folder_);
  ASSERT_TRUE(next.ok()) << next.status();
  const absl::Status refused = RunLock::Take(folder_).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("in use by another run"));
}

TEST_F(RunLockTest, AFolderThatCannotBeMadeIsForTheAgentToTellOf) {
  EXPECT_TRUE(RunLock::Take("/proc/none/here").ok());
}

}  // namespace
}  // namespace lockstep::launcher
