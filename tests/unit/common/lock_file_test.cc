// SPDX-License-Identifier: Apache-2.0
#include "common/lock_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/flock_fault.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class LockFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override {
    flock_error = 0;
    std::filesystem::remove_all(folder_);
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/lock_file_test-", ::getpid());
  const std::string path_ = absl::StrCat(folder_, "/deeper/shared.lock");
};

TEST_F(LockFileTest, OneAtATimeHoldsIt) {
  {
    const auto first = LockFile(path_, absl::ZeroDuration());
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = LockFile(path_, absl::ZeroDuration());
    EXPECT_EQ(second.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(path_));
  }
  EXPECT_TRUE(LockFile(path_, absl::ZeroDuration()).ok());
}

TEST_F(LockFileTest, NobodyElseMayOpenIt) {
  ASSERT_TRUE(LockFile(path_, absl::ZeroDuration()).ok());
  struct stat made {};
  ASSERT_EQ(::stat(path_.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600);
}

TEST_F(LockFileTest, WhatCannotBeOpenedIsSaid) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/file") << "text";
  const auto lock = LockFile(folder_ + "/file/shared.lock", absl::ZeroDuration());
  EXPECT_EQ(lock.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lock.status().message()), HasSubstr("cannot be opened"));
}

TEST_F(LockFileTest, AFileSystemWithoutLocksIsNoOtherProcess) {
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
    flock_error = error;
    const auto lock = LockFile(path_, absl::ZeroDuration());
    EXPECT_EQ(lock.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(lock.status().message()), HasSubstr(path_ + " cannot be locked"));
    EXPECT_THAT(std::string(lock.status().message()), HasSubstr(absl::StrCat("errno ", error)));
  }
}

TEST_F(LockFileTest, TextThatCannotBeReadIsEmpty) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/file") << "some\ntext";
  EXPECT_EQ(ReadText(folder_ + "/file"), "some\ntext");
  EXPECT_EQ(ReadText(folder_ + "/none"), "");
}

}  // namespace
}  // namespace lockstep
