// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/opened_data.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

// Files that are opened, of which the file system says `stamps` one after another.
struct Files {
  std::vector<uint64_t> stamps;
  size_t asked = 0;
  int opened = 0;

  absl::StatusOr<uint64_t> Open() {
    return OpenUnchanged([this] { return stamps.at(asked++); },
                         [this] {
                           ++opened;
                           return absl::OkStatus();
                         });
  }
};

TEST(OpenUnchanged, AsksTheFileSystemOnceBeforeAndOnceAfter) {
  Files files{{7, 7}};
  EXPECT_EQ(files.Open().value(), 7u);
  EXPECT_EQ(files.opened, 1);
  EXPECT_EQ(files.asked, 2u);
}

TEST(OpenUnchanged, WhatChangedMeanwhileIsOpenedAgain) {
  Files files{{7, 8, 8}};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(files.Open().value(), 8u);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("they are opened again"));
  EXPECT_EQ(files.opened, 2);
}

// What it is told to be is what it was before, so that whoever asks later sees that it changed.
TEST(OpenUnchanged, WhatChangesAllTheTimeIsTakenAndSaid) {
  Files files{{7, 8, 9}};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(files.Open().value(), 8u);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("others may see other samples"));
  EXPECT_EQ(files.opened, 2);
}

TEST(OpenUnchanged, WhatCannotBeOpenedIsAnError) {
  EXPECT_EQ(OpenUnchanged([] { return uint64_t{1}; }, [] { return absl::NotFoundError("no"); })
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

// Trains on this file, and does not evaluate.
JobSpec JobOf(const std::string& csv) {
  JobSpec job = SmallJob();
  Data& data = *job.mutable_train()->mutable_data();
  data.clear_kind();
  data.mutable_csv()->set_train(csv);
  data.mutable_csv()->set_label("-1");
  data.mutable_csv()->set_header("no");
  job.mutable_train()->mutable_eval()->set_every("never");
  return job;
}

TEST(OpenedDataTest, TellsInTheEndThatAFileWasWrittenToMeanwhile) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/opened_data-", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string csv = folder + "/train.csv";
  std::ofstream(csv) << "1,2,0\n3,4,1\n";
  JobSpec job = JobOf(csv);
  job.mutable_checkpoint()->set_dir(folder + "/saved");
  ProgressBoard board;
  OpenedData opened;
  const absl::Status status = opened.Open(job, /*over_hosts=*/false, &board);
  ASSERT_TRUE(status.ok()) << status;
  ::testing::internal::CaptureStderr();
  opened.TellOfChanges(&board, Clock::Real());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  std::ofstream(csv) << "1,2,0\n3,5,1\n7,7,1\n";
  ::testing::internal::CaptureStderr();
  opened.TellOfChanges(&board, Clock::Real());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("files of the data were replaced or written to since this worker opened"));
  std::filesystem::remove_all(folder);
}

// The wire carries no other text than UTF-8.
TEST(OpenedDataTest, TellsOfAFileWhoseNameIsNotUtf8) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/opened_data-", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string csv = folder + "/c\xe9.csv";
  std::ofstream(csv) << "1,2,0\n3,4,1\n";
  JobSpec job = JobOf(csv);
  ProgressBoard board;
  OpenedData opened;
  const absl::Status status = opened.Open(job, /*over_hosts=*/true, &board);
  ASSERT_TRUE(status.ok()) << status;
  WorkerReady ready;
  opened.Tell(&ready);
  ASSERT_EQ(ready.data_size(), 1);
  EXPECT_EQ(ready.data(0).path(), folder + "/c\\xe9.csv");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::worker
