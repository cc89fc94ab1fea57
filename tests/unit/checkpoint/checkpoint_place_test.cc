// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_place.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/recording_storage.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointPlaceTest : public ::testing::Test {
 protected:
  CheckpointPlaceTest() : runs_(::testing::TempDir() + "runs-" + std::to_string(::getpid())) {
    fs::remove_all(runs_);
    for (const char* run : {"/tiny-1a", "/tiny-2b", "/other-3c"})
      fs::create_directories(runs_ + run);
    storage_.SetMountPoint("/mnt/disk");
    EXPECT_TRUE(NoteCheckpointPlace(&storage_, runs_ + "/tiny-1a", "tiny-1a", folder_).ok());
  }
  ~CheckpointPlaceTest() override { fs::remove_all(runs_); }
  // The run whose folder is `dir`: of that name, unless `run` says another.
  absl::Status Check(const std::string& dir, bool earlier, const std::string& run = "") {
    return CheckNoneIsLost(&storage_, runs_ + dir, run.empty() ? dir.substr(1) : run, folder_,
                           earlier);
  }

  const std::string runs_;
  const std::string folder_ = "/mnt/disk/saved";
  RecordingStorage storage_;
};

TEST_F(CheckpointPlaceTest, WhatWasRemovedBeforeARunIsNoConcernOfIts) {
  EXPECT_TRUE(Check("/tiny-2b", /*earlier=*/true).ok());
  EXPECT_TRUE(CheckNoneIsLost(&storage_, "", "tiny-2b", folder_, true).ok());
}

// As with --run-dir. Nor is it when a version that noted no ids saved, if the note is removed.
TEST_F(CheckpointPlaceTest, WhatARunBeforeHadInTheSameFolderIsNoConcernOfIts) {
  for (const bool earlier : {false, true}) {
    EXPECT_TRUE(Check("/tiny-1a", earlier, "tiny-9z").ok()) << earlier;
  }
  storage_.SetMountPoint("/");
  EXPECT_TRUE(Check("/tiny-1a", /*earlier=*/false, "tiny-9z").ok()) << "a run that begins anew";
  EXPECT_EQ(Check("/tiny-1a", /*earlier=*/true, "tiny-9z").code(), absl::StatusCode::kUnavailable);
  std::ofstream(runs_ + "/tiny-1a/" + kPlaceName)
      << absl::StrCat(R"({"schema":1,"folder":")", folder_, R"(","mount_point":"/"})");
  const absl::Status missed = Check("/tiny-1a", /*earlier=*/false, "tiny-9z");
  EXPECT_EQ(missed.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missed.message(), HasSubstr(absl::StrCat("remove ", runs_, "/tiny-1a/", kPlaceName)));
}

TEST_F(CheckpointPlaceTest, ARunMissesItsOwn) {
  const absl::Status missed = Check("/tiny-1a", /*earlier=*/false);
  EXPECT_EQ(missed.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missed.message(), HasSubstr(folder_));
  const auto noted = [&](const std::string& run, const std::string& folder) {
    return NotedMountPoint(&storage_, runs_ + "/tiny-1a", run, folder);
  };
  EXPECT_EQ(noted("tiny-1a", folder_), "/mnt/disk");
  EXPECT_EQ(noted("tiny-1a", folder_ + "2"), "");
  EXPECT_EQ(noted("tiny-9z", folder_), "");
  EXPECT_EQ(NotedMountPoint(&storage_, "", "tiny-1a", folder_), "");
}

TEST_F(CheckpointPlaceTest, AFileSystemThatIsNotMountedIsNotAnEmptyFolder) {
  storage_.SetMountPoint("/");
  for (const char* run : {"/tiny-1a", "/tiny-2b"}) {
    const absl::Status missed = Check(run, /*earlier=*/true);
    EXPECT_EQ(missed.code(), absl::StatusCode::kUnavailable) << run;
    EXPECT_THAT(missed.message(), HasSubstr("mounted at /mnt/disk and is not now")) << run;
  }
  EXPECT_TRUE(Check("/other-3c", /*earlier=*/true).ok()) << "another job's";
  EXPECT_TRUE(Check("/tiny-2b", /*earlier=*/false).ok()) << "a run that begins anew";
  std::ofstream(runs_ + "/tiny-1a/" + kPlaceName) << "{not json";
  EXPECT_TRUE(Check("/tiny-2b", /*earlier=*/true).ok()) << "what cannot be read says nothing";
}

// As in a folder of runs where everybody may make theirs.
TEST_F(CheckpointPlaceTest, WhatAnotherUserNotedIsNoConcernOfTheJobs) {
  constexpr uid_t kOther = 20001;
  if (::geteuid() != 0) GTEST_SKIP() << "SKIPPED: giving a folder away needs root";
  storage_.SetMountPoint("/");
  ASSERT_EQ(Check("/tiny-2b", /*earlier=*/true).code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(::chown((runs_ + "/tiny-1a").c_str(), kOther, kOther), 0);
  EXPECT_TRUE(Check("/tiny-2b", /*earlier=*/true).ok());
  // Where all is one user's, whoever wrote it.
  ASSERT_EQ(::chown((runs_ + "/tiny-2b").c_str(), kOther, kOther), 0);
  EXPECT_EQ(Check("/tiny-2b", /*earlier=*/true).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CheckpointPlaceTest, OneFolderHasSeveralPaths) {
  fs::create_directory(runs_ + "/disk");
  fs::create_directory_symlink("disk", runs_ + "/link");
  const std::string folder = runs_ + "/disk/saved";
  // As the next run of the job finds it, when the file system is not mounted.
  const auto is_known = [&](const std::string& noted, const std::string& path) {
    storage_.SetMountPoint("/mnt/disk");
    EXPECT_TRUE(NoteCheckpointPlace(&storage_, runs_ + "/tiny-1a", "tiny-1a", noted).ok());
    storage_.SetMountPoint("/");
    return absl::IsUnavailable(
        CheckNoneIsLost(&storage_, runs_ + "/tiny-2b", "tiny-2b", path, /*earlier=*/true));
  };
  for (const char* same : {"/disk/saved/", "/disk/saved/.", "/disk/saved//", "/disk/./saved",
                           "/disk/../disk/saved/", "/link/saved", "/link/saved/"}) {
    EXPECT_TRUE(is_known(folder, runs_ + same)) << same;
    EXPECT_TRUE(is_known(runs_ + same, folder)) << same;
  }
  EXPECT_FALSE(is_known(folder, runs_ + "/disk"));
  EXPECT_FALSE(is_known(folder, runs_ + "/disk/saved2"));
}

// It may be on a server that is gone, which hangs whoever looks.
TEST_F(CheckpointPlaceTest, WhatAnotherRunNotedIsNotLookedAt) {
  fs::create_directories(runs_ + "/disk/saved");
  fs::create_directories(runs_ + "/elsewhere/saved");
  const std::string link = runs_ + "/link", noted = link + "/saved";
  const auto is_known = [&](const std::string& path) {
    storage_.SetMountPoint("/");
    return absl::IsUnavailable(
        CheckNoneIsLost(&storage_, runs_ + "/tiny-2b", "tiny-2b", path, /*earlier=*/true));
  };
  fs::create_directory_symlink("disk", link);
  ASSERT_TRUE(NoteCheckpointPlace(&storage_, runs_ + "/tiny-1a", "tiny-1a", noted).ok());
  fs::remove(link);
  fs::create_directory_symlink("elsewhere", link);
  EXPECT_TRUE(is_known(runs_ + "/disk/saved")) << "as it was when it was noted";
  EXPECT_FALSE(is_known(runs_ + "/elsewhere/saved"));
  // Older versions noted the path alone.
  std::ofstream(runs_ + "/tiny-1a/" + kPlaceName)
      << absl::StrCat(R"({"schema":1,"folder":")", noted, R"(","mount_point":"/mnt/disk"})");
  EXPECT_TRUE(is_known(noted));
  EXPECT_FALSE(is_known(runs_ + "/elsewhere/saved"));
}

}  // namespace
}  // namespace lockstep::checkpoint
