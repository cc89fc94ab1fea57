// SPDX-License-Identifier: Apache-2.0
// The best weights beside the checkpoints: what takes the place of others, and what stays.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/resealed_manifest.h"
#include "tests/unit/worker/checkpoint_life.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class KeptBestTest : public CheckpointerTest {
 protected:
  using Steps = std::vector<int64_t>;
  KeptBestTest() { fs::create_directories(folder_); }

  // The evaluation after `step` was the best so far.
  void Keep(Job* job, int64_t step) {
    const std::string path = absl::StrCat(folder_, "-weights");
    const std::string weights = absl::StrCat("weights of step ", step);
    std::ofstream(path) << weights;
    job->decided().best_step = step;
    job->decided().best_sha256 = checkpoint::Sha256Hex(weights);
    job->ranks()[0].checkpointer->KeepBest(step, path, job->decided().best_sha256, nullptr);
    fs::remove(path);
  }
  // The steps whose weights are there, once nobody does anything in the folder.
  Steps Kept(Job* job) {
    for (Rank& rank : job->ranks()) rank.checkpointer.reset();
    Steps steps;
    for (int64_t step = 0; step < 1000; ++step) {
      if (fs::exists(absl::StrCat(folder_, "/", checkpoint::BestName(step)))) steps.push_back(step);
    }
    return steps;
  }
};

TEST_F(KeptBestTest, BetterOnesTakeThePlaceOfTheLast) {
  Job job(folder_, 1);
  job.Enter();
  for (int64_t step = 1; step <= 50; ++step) Keep(&job, step);
  EXPECT_THAT(Kept(&job), ElementsAre(50));
}

TEST_F(KeptBestTest, ThoseThatACheckpointKnowsStayAsLongAsItDoes) {
  for (const bool again : {false, true}) {
    fs::remove_all(folder_);
    Job job(folder_, 1, "run", "", /*keep=*/1);
    job.Enter();
    Keep(&job, 1);
    job.Step();
    job.Step();
    job.Complete();
    for (const int64_t step : {3, 4, 5}) Keep(&job, step);
    for (int i = 0; again && i < 4; ++i) job.Step();
    if (again) job.Complete();
    EXPECT_EQ(Kept(&job), again ? Steps({5}) : Steps({1, 5}));
  }
}

// Its parts are durable, and whether they all are is known at the next boundary.
TEST_F(KeptBestTest, ThoseOfTheCheckpointUnderWayStay) {
  Job job(folder_, 2);
  job.Enter();
  Keep(&job, 1);
  job.Step(/*due=*/true);
  Keep(&job, 2);
  EXPECT_TRUE(job.StepUntilSaved(1));
  EXPECT_THAT(Kept(&job), ElementsAre(1, 2));
}

// One that a single rank writes appears when it is written, though the generation is over, and the
// job may have another one under way by then.
TEST_F(KeptBestTest, ThoseOfACheckpointOfTheLastGenerationStay) {
  Job job(folder_, 1);
  absl::Notification kept;
  job.Ask([&kept](const checkpoint::Manifest& manifest) {
    if (manifest.step == 1) kept.WaitForNotification();
    return absl::OkStatus();
  });
  job.Enter();
  Keep(&job, 1);
  job.Step(/*due=*/true);
  job.Connect();
  job.Enter();
  Keep(&job, 1);
  job.Step(/*due=*/true);
  Keep(&job, 2);
  kept.Notify();
  EXPECT_TRUE(job.StepUntilSaved(1));
  EXPECT_THAT(Kept(&job), ElementsAre(1, 2));
}

// Meanwhile another rank may have kept and saved for the run.
TEST_F(KeptBestTest, ThoseOfAnEarlierGenerationStayUntilTheNextCheckpoint) {
  for (const bool saves : {false, true}) {
    fs::remove_all(folder_);
    Job job(folder_, 1);
    job.Enter();
    Keep(&job, 1);
    job.Connect();
    job.Enter();
    Keep(&job, 2);
    Keep(&job, 3);
    for (int i = 0; saves && i < 4; ++i) job.Step();
    if (saves) job.Complete();
    EXPECT_EQ(Kept(&job), saves ? Steps({3}) : Steps({1, 3}));
  }
}

TEST_F(KeptBestTest, ThoseThatSomethingUnreadMayKnowOfStay) {
  Job job(folder_, 1);
  job.Enter();
  Keep(&job, 1);
  job.Step();
  job.Complete();
  checkpoint::MakeNewer(folder_ + "/step-0000000001/manifest.json");
  Keep(&job, 2);
  EXPECT_THAT(Kept(&job), ElementsAre(1, 2));
}

TEST_F(KeptBestTest, WhereAnotherRunSavesAllStay) {
  for (const bool before : {true, false}) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    Job other(folder_, 1, "other");
    Job job(folder_, 1);
    Begin(before ? &other : &job);
    Begin(before ? &job : &other);
    for (const int64_t step : {1, 2, 3}) Keep(&job, step);
    EXPECT_THAT(Kept(&job), ElementsAre(1, 2, 3));
  }
}

// As those of a worker that died before it had removed them, of steps that were not saved.
TEST_F(KeptBestTest, WhatTheDeadLeftGoesWithTheFirstCheckpointAfterIt) {
  for (const bool alone : {true, false}) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const int64_t step : {2, 3, 4, 9}) {
      std::ofstream(absl::StrCat(folder_, "/", checkpoint::BestName(step))) << "left";
    }
    Job other(folder_, 1, "other");
    if (!alone) Begin(&other);
    Job job(folder_, 1);
    Begin(&job);
    Keep(&job, 1);
    for (int i = 0; i < 4; ++i) job.Step();
    job.Complete();
    EXPECT_EQ(Kept(&job), alone ? Steps({1, 4, 9}) : Steps({1, 2, 3, 4, 9}));
  }
}

TEST_F(KeptBestTest, NothingIsWrittenWhereTheFolderIsNotMountedAnyMore) {
  Job job(folder_, 1);
  Begin(&job);
  Keep(&job, 1);
  const auto said_of = [&](int64_t step) {
    ::testing::internal::CaptureStderr();
    Keep(&job, step);
    return ::testing::internal::GetCapturedStderr();
  };
  checkpoint::RecordingStorage* const storage = job.ranks()[0].storage.get();
  storage->SetMountPoint("/elsewhere");
  const size_t done = storage->done().size();
  EXPECT_THAT(said_of(2), HasSubstr("before: is that mounted?"));
  EXPECT_EQ(storage->done().size(), done);
  storage->SetMountPoint("");
  EXPECT_EQ(said_of(3), "");
  EXPECT_THAT(Kept(&job), ElementsAre(3));
}

TEST_F(KeptBestTest, AnotherFileInTheirPlaceIsComparedAnew) {
  Job job(folder_, 1);
  Begin(&job);
  Keep(&job, 1);
  Checkpointer* const checkpointer = job.ranks()[0].checkpointer.get();
  const std::string path = checkpointer->BestPath(1), sha256 = job.decided().best_sha256;
  int reads = 0;
  job.ranks()[0].storage->BeforeReads([&](const std::string& read) {
    reads += read == path ? 1 : 0;
    return absl::OkStatus();
  });
  EXPECT_EQ(checkpointer->MatchBest(1, sha256, nullptr), checkpoint::FileMatch::kSame);
  EXPECT_EQ(reads, 0);
  const auto written = fs::last_write_time(path);
  const std::string damaged(fs::file_size(path), '?');
  std::ofstream(path) << damaged;  // as cp writes over a file
  fs::last_write_time(path, written + std::chrono::seconds(1));
  EXPECT_EQ(checkpointer->MatchBest(1, sha256, nullptr), checkpoint::FileMatch::kOther);
  std::ofstream(path + "-") << "other weights";
  fs::rename(path + "-", path);
  EXPECT_EQ(checkpointer->MatchBest(1, sha256, nullptr), checkpoint::FileMatch::kOther);
  fs::remove(path);
  EXPECT_EQ(checkpointer->MatchBest(1, sha256, nullptr), checkpoint::FileMatch::kOther);
}

// Whoever dies over it leaves what the checkpoints know, and the new ones whole.
TEST_F(KeptBestTest, WhatCannotBeRemovedCostsNothing) {
  Job job(folder_, 1);
  job.Enter();
  Keep(&job, 1);
  job.ranks()[0].storage->FailOn("remove best-");
  ::testing::internal::CaptureStderr();
  Keep(&job, 2);
  EXPECT_THAT(Kept(&job), ElementsAre(1, 2));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace lockstep::worker
