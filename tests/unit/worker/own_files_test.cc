// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/own_files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OwnFilesTest : public ::testing::Test {
 protected:
  OwnFilesTest() {
    fs::create_directories(base_ + "/books/runs");
    fs::create_directories(base_ + "/books-too");
    std::ofstream(base_ + "/books/a.txt") << "a text";
  }
  ~OwnFilesTest() override { fs::remove_all(base_); }

  absl::Status Check(const std::string& text, const std::string& run_dir,
                     const std::string& checkpoints = "") const {
    JobSpec job;
    job.mutable_train()->mutable_data()->mutable_text()->set_path(base_ + text);
    if (!checkpoints.empty()) job.mutable_checkpoint()->set_dir(base_ + checkpoints);
    return CheckOwnFilesAreNoData(job, base_ + run_dir);
  }

  const std::string base_ = absl::StrCat(::testing::TempDir(), "own-files-", ::getpid());
};

TEST_F(OwnFilesTest, AFolderOfTextsHoldsNoRun) {
  for (const char* text : {"/books", "/books/", "/books/.", "/books/runs/.."}) {
    const absl::Status refused = Check(text, "/books/runs/tiny-1");
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("holds this run's folder"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("/books/runs/tiny-1"));
  }
  EXPECT_TRUE(Check("/books", "/books-too/tiny-1").ok()) << "the name alone begins so";
  EXPECT_TRUE(Check("/books", "/tiny-1").ok());
  EXPECT_TRUE(Check("/books/a.txt", "/books/runs/tiny-1").ok()) << "one file is read";
  EXPECT_TRUE(Check("/nowhere", "/nowhere/tiny-1").ok()) << "who opens it says so";
}

TEST_F(OwnFilesTest, AFolderOfTextsHoldsNoCheckpoints) {
  const absl::Status refused = Check("/books", "/tiny-1", "/books/saved");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("holds this job's checkpoints"));
  EXPECT_TRUE(Check("/books", "/tiny-1", "/saved").ok());
}

// What lies behind a link to a folder is not read.
TEST_F(OwnFilesTest, ALinkToAFolderMayBeThere) {
  fs::remove(base_ + "/books/runs");
  fs::create_directory_symlink(base_ + "/books-too", base_ + "/books/runs");
  EXPECT_TRUE(Check("/books", "/books/runs/tiny-1").ok());
}

}  // namespace
}  // namespace lockstep::worker
