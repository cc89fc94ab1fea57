// SPDX-License-Identifier: Apache-2.0
// Runs that begin together and share a folder, as jobs of one name do by default.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint_life.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kOtherTraining = R"({"seed": 2})";

class CheckpointRivalsTest : public CheckpointerTest {
 protected:
  CheckpointRivalsTest() { Begin(&first_); }

  static void Save(Job* job, int steps = 1) {
    for (int i = 0; i < steps; ++i) job->Step();
    job->Complete();
  }
  // What is said while the run saves after its next step.
  static std::string SaidBySave(Job* job) {
    ::testing::internal::CaptureStderr();
    Save(job);
    return ::testing::internal::GetCapturedStderr();
  }
  // The runs whose checkpoints are there, newest first.
  std::vector<std::string> Runs() {
    std::vector<std::string> runs;
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_);
    for (const auto& one : found->checkpoints) runs.push_back(one.manifest.run);
    return runs;
  }

  Job first_{folder_, 1, "first", "", /*keep=*/1};
};

TEST_F(CheckpointRivalsTest, AnotherTrainingsCheckpointsStay) {
  Job other(folder_, 1, "other", "", /*keep=*/1, {}, kOtherTraining);
  Begin(&other);
  Save(&first_);
  std::string said;
  for (int i = 0; i < 3; ++i) {  // of the same step, and of later ones
    said = SaidBySave(&other);
    EXPECT_THAT(said, HasSubstr("is used by run first, too, which saved step-0000000001 there: "
                                "give each job a checkpoint.dir of its own"));
    EXPECT_THAT(said, HasSubstr("the last one of this run, is not saved"));
    EXPECT_THAT(Runs(), ElementsAre("first"));
  }
  EXPECT_EQ(SaidBySave(&first_), "");
  EXPECT_THAT(Runs(), ElementsAre("first"));
  EXPECT_EQ(std::filesystem::read_symlink(folder_ + "/last"), "step-0000000002");
  EXPECT_EQ(Resumed(1, "auto", first_.State(), "again"), 2);
}

// The first run's appears when the other one has looked, and before its own has its name.
TEST_F(CheckpointRivalsTest, WhatAppearsMeanwhileStays) {
  for (const bool seen : {true, false}) {
    std::filesystem::remove_all(folder_);
    Job first(folder_, 1, "first");
    Job other(folder_, 1, "other", "", /*keep=*/1, {}, kOtherTraining);
    Begin(&first);
    Begin(&other);
    bool saved = false;
    other.ranks()[0].storage->BeforeReads([&](const std::string& path) {
      const bool last = absl::EndsWith(path, "/step-0000000001/manifest.json");
      if (!last || std::exchange(saved, true)) return absl::OkStatus();
      Save(&first);
      return seen ? absl::OkStatus() : absl::NotFoundError("not yet");
    });
    EXPECT_THAT(SaidBySave(&other), HasSubstr("is used by run first, too")) << seen;
    EXPECT_TRUE(saved);
    EXPECT_THAT(Runs(), ElementsAre("first")) << seen;
    EXPECT_EQ(Resumed(1, "auto", first.State(), "again"), 1);
  }
}

// The first run's appears when the other one has found none to go on from, and has not begun.
TEST_F(CheckpointRivalsTest, WhoFoundNoneToGoOnFromTakesNothingOver) {
  Save(&first_);
  Job other(folder_, 1, "other", "", /*keep=*/1, {}, kOtherTraining);
  Begin(&other);
  EXPECT_THAT(SaidBySave(&other), HasSubstr("is used by run first, too"));
  EXPECT_THAT(Runs(), ElementsAre("first"));
  EXPECT_EQ(SaidBySave(&first_), "");
  Job never(folder_, 1, "never", "", /*keep=*/1, {}, kOtherTraining, /*takes_over=*/true);
  Begin(&never);
  Save(&never);
  EXPECT_THAT(Runs(), ElementsAre("never"));
}

// Which run it is is found as it begins, whatever somebody left there.
TEST_F(CheckpointRivalsTest, WhatCannotBeRemovedMakesNoLaterRunOfOne) {
  std::filesystem::create_directory(folder_ + "/.saving-left");
  Job other(folder_, 1, "other", "", /*keep=*/1, {}, kOtherTraining, /*takes_over=*/true);
  other.ranks()[0].storage->FailOn("remove .saving-left");
  Begin(&other);
  Save(&first_);
  EXPECT_THAT(SaidBySave(&other), HasSubstr("is used by run first, too"));
  EXPECT_THAT(Runs(), ElementsAre("first"));
}

// A run of which somebody saved when the same job had been started again.
TEST_F(CheckpointRivalsTest, TheSameTrainingGoesOn) {
  Job again(folder_, 1, "again", "", /*keep=*/1);
  Begin(&again);
  Save(&first_);
  again.Step();
  Save(&again);
  EXPECT_THAT(Runs(), ElementsAre("again", "first"));
}

// It would go on from the longer one's no more.
TEST_F(CheckpointRivalsTest, ALongerTrainingTakesNothingOverThatIsAtWork) {
  Job brief(folder_, 1, "brief", "", /*keep=*/1, {}, R"({"epochs": 3})");
  Job longer(folder_, 1, "longer", "", /*keep=*/1, {}, R"({"epochs": 5})");
  Begin(&brief);
  Begin(&longer);
  Save(&brief);
  longer.Step();
  EXPECT_THAT(SaidBySave(&longer), HasSubstr("is used by run brief, too"));
  EXPECT_THAT(Runs(), ElementsAre("brief"));
}

TEST_F(CheckpointRivalsTest, WhoBeginsBesideAnotherIsTold) {
  ::testing::internal::CaptureStderr();
  {
    Job other(folder_, 1, "other");
    Begin(&other);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr(folder_ + " is used by run first, too"));
    EXPECT_THAT(*checkpoint::Storage::Disk()->List(folder_),
                ElementsAre(".run-first", ".run-other"));
  }
  EXPECT_THAT(*checkpoint::Storage::Disk()->List(folder_), ElementsAre(".run-first"));
  // One that died holds nothing.
  std::ofstream(folder_ + "/.run-dead") << "";
  ::testing::internal::CaptureStderr();
  Job later(folder_, 1, "first");
  Begin(&later);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "another worker of the run holds it";
  Job next(folder_ + "/next", 1, "next");
  std::filesystem::create_directory(folder_ + "/next");
  std::ofstream(folder_ + "/next/.run-dead") << "";
  ::testing::internal::CaptureStderr();
  Begin(&next);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(*checkpoint::Storage::Disk()->List(folder_ + "/next"), ElementsAre(".run-next"));
}

TEST_F(CheckpointRivalsTest, TheBestWeightsOfAnotherTrainingStay) {
  Job other(folder_, 1, "other", "", /*keep=*/1, {}, kOtherTraining);
  Begin(&other);
  const auto keep = [&](Job* job, const std::string& weights) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/best-", ::getpid());
    std::ofstream(path) << weights;
    job->decided().best_step = 1;
    job->decided().best_sha256 = checkpoint::Sha256Hex(weights);
    job->ranks()[0].checkpointer->KeepBest(1, path, job->decided().best_sha256, nullptr);
    std::filesystem::remove(path);
  };
  keep(&first_, "first");
  const std::string best = first_.ranks()[0].checkpointer->BestPath(1);
  ::testing::internal::CaptureStderr();
  keep(&other, "other");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("are not kept with the checkpoints"));
  EXPECT_EQ(*checkpoint::Storage::Disk()->Read(best, 100), "first");
  Save(&first_);
  keep(&other, "other");
  EXPECT_EQ(*checkpoint::Storage::Disk()->Read(best, 100), "first");
}

}  // namespace
}  // namespace lockstep::worker
