// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/folder_copies.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_place.h"
#include "checkpoint/sha256.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint_life.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Hosts h0, h1, ... with one rank each, whose folders are a, b, ... below the test's.
class FolderCopiesTest : public CheckpointerTest {
 protected:
  std::vector<std::string> Folders(const std::string& letters) const {
    std::vector<std::string> folders;
    for (const char letter : letters) folders.push_back(folder_ + "/" + letter);
    return folders;
  }
  Job Life(const std::string& letters, const std::string& run = "run") const {
    return Job(folder_, static_cast<int>(letters.size()), run, run_dir_, 2, Folders(letters));
  }
  // Trains for `steps` steps with a checkpoint after each.
  static void Train(Job* job, int steps) {
    job->Look();
    job->Enter();
    for (int i = 0; i < steps; ++i) {
      job->Step();
      job->Complete();
    }
  }
  std::vector<int64_t> StepsIn(const std::string& letter) const {
    std::vector<int64_t> steps;
    const auto contents =
        checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_ + "/" + letter);
    EXPECT_TRUE(contents.ok()) << contents.status();
    for (const auto& found : contents->checkpoints) steps.push_back(found.manifest.step);
    return steps;
  }
  // The step that a life on these folders goes on after; all ranks have the state `wanted`.
  int64_t ResumedIn(const std::string& letters, const std::string& wanted) {
    Job job = Life(letters);
    job.SetGeneration(9);
    job.Connect();
    job.Look();
    int64_t step = -1;
    for (const auto& restored : job.Restore("auto")) {
      EXPECT_TRUE(restored.ok()) << restored.status();
      if (restored.ok() && restored->has_value()) step = (*restored)->manifest.step;
    }
    for (size_t r = 0; r < letters.size() && step >= 0; ++r) {
      EXPECT_EQ(job.State(static_cast<int>(r)), wanted) << "rank " << r;
      EXPECT_EQ(job.ranks()[r].executor->committed_step(), step);
    }
    return step;
  }
  std::string run_dir_;
};

TEST_F(FolderCopiesTest, WhoSeesTheSameFolder) {
  Job shared = Life("aaa");
  shared.Look();
  EXPECT_EQ(shared.copies().count(), 1);
  Job apart = Life("abc");
  apart.Look();
  EXPECT_THAT(apart.copies().writers, ElementsAre(0, 1, 2));
  Job mixed = Life("abab");
  mixed.Look();
  EXPECT_THAT(mixed.copies().writers, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(mixed.copies().count(), 2);
  EXPECT_EQ(mixed.copies().ShareOf(3).place, 1);
  EXPECT_EQ(mixed.copies().ShareOf(3).of, 2);
  for (const char* letter : {"a", "b", "c"}) {
    EXPECT_TRUE(fs::is_empty(folder_ + "/" + letter)) << "nothing is left";
  }
}

TEST_F(FolderCopiesTest, JobsThatLookAtOneFolderInOneMomentLeaveEachOtherTheirFiles) {
  Job job = Life("aa");
  Job other = Life("aa", "other");
  other.SetGeneration(7);  // its files have other names
  other.Connect();
  job.ranks()[1].storage->BeforeReads([&](const std::string& path) {
    if (path.find("/.seen-") != std::string::npos) other.Look();
    return absl::OkStatus();
  });
  job.Look();
  EXPECT_EQ(job.copies().count(), 1);
  EXPECT_EQ(other.copies().count(), 1);
}

TEST_F(FolderCopiesTest, WhatWasLeftLongAgoIsRemovedWhosesoeverItIs) {
  fs::create_directories(folder_ + "/a");
  const auto leave = [&](const std::string& name, int minutes) {
    const std::string path = folder_ + "/a/" + name;
    std::ofstream(path) << "what was left";
    fs::last_write_time(path, fs::last_write_time(path) - std::chrono::minutes(minutes));
  };
  leave(".seen-c0ffee-0", 62);
  leave(".seen-job.1.0.c0ffee", 62);  // named as it was for a while
  leave(".seen-c0ffee-1", 58);
  leave("step-1", 62);
  Job job = Life("aa");
  job.Look();
  std::vector<std::string> there;
  for (const auto& entry : fs::directory_iterator(folder_ + "/a")) {
    there.push_back(entry.path().filename());
  }
  EXPECT_THAT(there, UnorderedElementsAre(".seen-c0ffee-1", "step-1"));
}

TEST_F(FolderCopiesTest, NothingIsLeftWhereTheFolderIsNotMountedAnyMore) {
  Job job = Life("aa");
  checkpoint::RecordingStorage* const storage = job.ranks()[1].storage.get();
  storage->SetMountPoint("/elsewhere");
  job.Look();
  EXPECT_THAT(storage->done(), IsEmpty());
}

// Nobody takes a worker to hang whose disk is busy with what is being written of a checkpoint.
TEST_F(FolderCopiesTest, TheBoardMovesWhileTheDiskIsWaitedFor) {
  Job job = Life("ab");
  for (Rank& rank : job.ranks()) {
    ProgressBoard* const board = rank.board.get();
    board->Enter(WAITING);
    const auto wait = [board] {
      EXPECT_EQ(board->phase, SAVING);
      const int64_t moves = board->moves;
      while (board->moves == moves) std::this_thread::yield();
    };
    rank.storage->BeforeSyncs([wait](const std::string&) { wait(); });
    rank.storage->BeforeReads([wait](const std::string&) {
      wait();
      return absl::OkStatus();
    });
  }
  job.Look();
  EXPECT_EQ(job.copies().count(), 2);
  for (const Rank& rank : job.ranks()) EXPECT_EQ(rank.board->phase, WAITING);
}

// A disk that is full in the middle of a run is no reason to end it.
TEST_F(FolderCopiesTest, WhereNothingCanBeWrittenTheJobsWordCounts) {
  for (int broken = 0; broken < 2; ++broken) {
    Job job = Life("aa");
    job.ranks()[static_cast<size_t>(broken)].storage->FailAt(1, /*all=*/true);
    job.Look("always");
    EXPECT_EQ(job.copies().count(), 1);
    EXPECT_THAT(job.copies().writers, IsEmpty());
  }
}

TEST_F(FolderCopiesTest, WhereNothingCanBeWrittenWhatWasSeenBeforeCounts) {
  const auto look = [this](const std::string& letters, const std::string& full, bool newcomer) {
    Job job = Life(letters);
    job.Look();
    job.Connect();
    for (const char rank : full) job.ranks()[rank - '0'].storage->FailAt(1, /*all=*/true);
    if (newcomer) job.ranks()[1].before = Sharing::kUnknown;
    job.Look();
    return job.copies().count();
  };
  for (const std::string full : {"0", "1", "01"}) {
    EXPECT_EQ(look("aa", full, /*newcomer=*/false), 1) << full;
    EXPECT_EQ(look("ab", full, /*newcomer=*/false), 2) << full;
  }
  EXPECT_EQ(look("aa", "01", /*newcomer=*/true), 1) << "those who were there before know";
  EXPECT_EQ(look("aa", "0", /*newcomer=*/true), 2) << "who has room may have another disk";
  EXPECT_EQ(look("aba", "0", /*newcomer=*/false), 3) << "it was not all who shared one";
}

// Nobody knows from before. What is taken for two folders is one, and each host writes all there.
TEST_F(FolderCopiesTest, HostsThatDoNotKnowThatTheyShareAFolderSaveBesideEachOther) {
  Job job = Life("aa");
  for (Rank& rank : job.ranks()) rank.storage->FailAt(1, /*all=*/true);
  job.Look();
  EXPECT_EQ(job.copies().count(), 2);
  for (Rank& rank : job.ranks()) rank.storage->FailAt(-1, /*all=*/false);
  ::testing::internal::CaptureStderr();
  job.Enter();
  for (int i = 0; i < 2; ++i) {
    job.Step();
    job.Complete();
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(Not(HasSubstr("not saved")), Not(HasSubstr("has no copy"))));
  EXPECT_THAT(StepsIn("a"), ElementsAre(2, 1));
  for (const auto& entry : fs::directory_iterator(folder_ + "/a")) {
    EXPECT_THAT(entry.path().filename(), Not(HasSubstr("saving")));
  }
  EXPECT_EQ(ResumedIn("aa", job.State()), 2);
}

TEST_F(FolderCopiesTest, EachFolderHasACopy) {
  Job job = Life("abb");
  Train(&job, 1);
  for (const char* letter : {"a", "b"}) {
    EXPECT_THAT(StepsIn(letter), ElementsAre(1));
    EXPECT_EQ(fs::read_symlink(folder_ + "/" + letter + "/last"), "step-0000000001");
  }
  EXPECT_EQ(ResumedIn("abb", job.State()), 1);
  EXPECT_EQ(ResumedIn("b", job.State()), 1) << "any host that is left";
}

TEST_F(FolderCopiesTest, AHostWithoutFilesTakesTheStateFromThoseThatHaveThem) {
  Job job = Life("ab");
  Train(&job, 2);
  EXPECT_EQ(ResumedIn("ca", job.State()), 2);
  EXPECT_EQ(ResumedIn("cdb", job.State()), 2);
  EXPECT_EQ(ResumedIn("cd", ""), -1);
}

// The run's folder, which all hosts share, says that there were checkpoints.
TEST_F(FolderCopiesTest, AHostThatHasLostItsCopyTakesTheStateFromThoseThatHaveTheirs) {
  run_dir_ = folder_ + "/run";
  std::string state;
  {
    Job job = Life("ab");
    Train(&job, 2);
    state = job.State();
  }
  ASSERT_TRUE(
      checkpoint::NoteCheckpointPlace(checkpoint::Storage::Disk(), run_dir_, "run", folder_ + "/b")
          .ok());
  fs::remove_all(folder_ + "/b");
  EXPECT_EQ(ResumedIn("ab", state), 2);
  fs::remove_all(folder_ + "/a");
  Job job = Life("ab");
  job.Look();
  const auto results = job.Restore("auto");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kNotFound) << "nobody has any";
}

// As where a host comes without the disk on which the others save.
TEST_F(FolderCopiesTest, AHostOnWhichTheFileSystemIsNotMountedTakesTheStateAndSavesNothing) {
  run_dir_ = folder_ + "/run";
  std::string state;
  {
    Job job = Life("ab");
    Train(&job, 2);
    state = job.State();
  }
  checkpoint::RecordingStorage mounted;
  mounted.SetMountPoint("/mnt/disk");
  ASSERT_TRUE(checkpoint::NoteCheckpointPlace(&mounted, run_dir_, "run", folder_ + "/b").ok());
  fs::remove_all(folder_ + "/b");
  Job job = Life("ab");
  job.Look();
  for (const auto& restored : job.Restore("auto")) ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(job.State(1), state);
  ::testing::internal::CaptureStderr();
  Train(&job, 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("and lay on that of /mnt/disk before: is that mounted?"));
  EXPECT_THAT(StepsIn("a"), ElementsAre(3, 2));
  EXPECT_FALSE(fs::exists(folder_ + "/b"));
}

TEST_F(FolderCopiesTest, TheRunsOwnComeBeforeThoseOfRunsBefore) {
  std::string earlier, own;
  {
    Job job = Life("a", "first");
    Train(&job, 1);
  }
  {
    Job job = Life("a", "second");  // its number is higher than that of the run on the other host
    job.Look();
    ASSERT_TRUE(job.Restore("auto")[0].ok());
    Train(&job, 2);
    earlier = job.State();
  }
  {
    Job job = Life("b");
    job.TrainOn(3);
    Train(&job, 1);
    own = job.State();
  }
  EXPECT_EQ(ResumedIn("ab", own), 1);
  fs::remove_all(folder_ + "/b");
  const auto restore = [&] {
    Job job = Life("ab");
    job.Know(/*generation=*/1, /*step=*/1, /*previous_generation=*/1);
    job.Look();
    return job.Restore("auto");
  };
  // It was to appear, by the coordinator's word, and may have never done so.
  ::testing::internal::CaptureStderr();
  for (const auto& restored : restore()) {
    ASSERT_TRUE(restored.ok() && restored->has_value()) << restored.status();
    EXPECT_EQ((*restored)->manifest.run, "second");
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("no host has a whole checkpoint of this run"));
  // It was there, by what the run noted.
  run_dir_ = folder_ + "/run";
  ASSERT_TRUE(
      checkpoint::NoteCheckpointPlace(checkpoint::Storage::Disk(), run_dir_, "run", folder_ + "/b")
          .ok());
  const auto results = restore();
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FolderCopiesTest, WhatAnotherTrainingSavedStaysWithItsBestWeights) {
  const std::string name = "/" + checkpoint::BestName(2);
  const auto train = [&](Job* job, const std::string& letter, int steps) {
    job->Look();
    ASSERT_TRUE(job->Restore("auto")[0].ok());
    fs::create_directories(folder_ + "/" + letter);
    std::ofstream(folder_ + "/" + letter + name) << letter;
    job->decided() = {{}, 2, 2, checkpoint::Sha256Hex(letter)};
    Train(job, steps);
  };
  {
    Job earlier = Life("a", "earlier");
    Train(&earlier, 1);
    Job job = Life("a");  // with a higher number than the other training's
    train(&job, "a", 1);
    Job other(folder_, 1, "other", "", 2, Folders("b"), R"({"seed": 7})");
    train(&other, "b", 3);
  }
  Job job = Life("ab");
  job.Look();
  for (const auto& restored : job.Restore("auto")) ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(job.State(1), job.State(0));
  EXPECT_EQ(*checkpoint::Storage::Disk()->Read(folder_ + "/b" + name, 100), "b");
  Train(&job, 2);
  EXPECT_THAT(StepsIn("a"), ElementsAre(4, 3));
  EXPECT_THAT(StepsIn("b"), ElementsAre(3, 2));
  const auto there = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_ + "/b");
  for (const auto& found : there->checkpoints) EXPECT_EQ(found.manifest.run, "other");
  EXPECT_EQ(fs::read_symlink(folder_ + "/b/best"), name.substr(1));
  EXPECT_EQ(*checkpoint::Storage::Disk()->Read(folder_ + "/b" + name, 100), "b");
}

TEST_F(FolderCopiesTest, WhatAnotherTrainingLeftOnAHostDoesNotKeepTheRunFromGoingOn) {
  std::string state;
  {
    Job job = Life("a");
    Train(&job, 2);
    state = job.State();
    Job other(folder_, 1, "other", "", 2, Folders("b"), R"({"seed": 7})");
    Train(&other, 3);
  }
  for (const bool saved : {true, false}) {
    for (const std::string letters : {"ab", "cb"}) {
      Job job = Life(letters);
      if (saved) job.Know(/*generation=*/1, /*step=*/2, /*previous_generation=*/1);
      job.Look();
      const auto results = job.Restore("auto");
      if (letters == "ab") {
        ASSERT_TRUE(results[1].ok() && results[1]->has_value()) << results[1].status();
        EXPECT_EQ(job.State(1), state);
        continue;
      }
      EXPECT_EQ(results[0].status().code(), absl::StatusCode::kAborted);
      EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInvalidArgument) << "nobody has any";
    }
  }
  Job begins = Life("ab", "a run that begins");
  begins.Look();
  const auto results = begins.Restore("auto");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FolderCopiesTest, NoBestWeightsComeWhereTheFolderIsNotMountedAnyMore) {
  const std::string name = "/" + checkpoint::BestName(1);
  {
    Job job = Life("a");
    fs::create_directories(folder_ + "/a");
    std::ofstream(folder_ + "/a" + name) << "weights";
    job.decided() = {{}, 1, 1, checkpoint::Sha256Hex("weights")};
    Train(&job, 1);
  }
  Job job = Life("ab");
  job.ranks()[1].storage->SetMountPoint("/elsewhere");
  job.Look();
  for (const auto& restored : job.Restore("auto")) ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_THAT(job.ranks()[1].storage->done(), IsEmpty());
}

TEST_F(FolderCopiesTest, TheBestWeightsComeWithTheState) {
  const std::string name = "/" + checkpoint::BestName(1);
  Job job = Life("ab");
  job.Look();
  job.Enter();
  job.Step();
  const std::string weights(10'000'000, 'w');  // in several pieces
  job.decided() = {{}, 1, 1, checkpoint::Sha256Hex(weights)};
  for (const char* letter : {"/a", "/b"}) std::ofstream(folder_ + letter + name) << weights;
  job.Complete();
  EXPECT_EQ(ResumedIn("ca", job.State()), 1);
  std::ifstream file(folder_ + "/c" + name);
  EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(file), {}) == weights);
  EXPECT_FALSE(fs::exists(folder_ + "/c/.saving-best"));
}

// The host that gives them cannot read them all.
TEST_F(FolderCopiesTest, BestWeightsAreReplacedByRightOnesAlone) {
  const std::string name = "/" + checkpoint::BestName(1);
  const std::string weights(10'000'000, 'w');
  {
    Job job = Life("ab");
    job.Look();
    job.Enter();
    job.Step();
    job.decided() = {{}, 1, 1, checkpoint::Sha256Hex(weights)};
    for (const char* letter : {"/a", "/b"}) std::ofstream(folder_ + letter + name) << weights;
    job.Complete();
  }
  Flip("a/step-0000000001/training.safetensors");
  Job job = Life("ab");
  job.Look();
  bool opened = false;
  job.ranks()[1].storage->BeforeReads([&](const std::string& path) {
    const bool best = path.ends_with(name);
    return best && std::exchange(opened, true) ? ErrnoStatus(EIO, path) : absl::OkStatus();
  });
  for (const auto& restored : job.Restore("auto")) ASSERT_TRUE(restored.ok()) << restored.status();
  std::ifstream file(folder_ + "/a" + name);
  EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(file), {}) == weights);
  EXPECT_FALSE(fs::exists(folder_ + "/a/.saving-best"));
}

TEST_F(FolderCopiesTest, TheBoardMovesWhileADiskThatGivesItsCopyIsWaitedFor) {
  {
    Job job = Life("ab");
    Train(&job, 1);
  }
  Job job = Life("ac");
  job.Look();
  for (Rank& rank : job.ranks()) {
    WaitForBoardInReads(&rank);
  }
  for (const auto& restored : job.Restore("auto")) {
    ASSERT_TRUE(restored.ok() && restored->has_value()) << restored.status();
  }
}

TEST_F(FolderCopiesTest, TheNewestOfAllIsTaken) {
  std::string newest;
  {
    Job job = Life("ab");
    Train(&job, 2);
  }
  {
    // Host b was away.
    Job job = Life("a");
    job.SetGeneration(4);
    job.Connect();
    job.Look();
    ASSERT_TRUE(job.Restore("auto")[0].ok());
    Train(&job, 3);
    newest = job.State();
  }
  EXPECT_THAT(StepsIn("b"), ElementsAre(2, 1));
  EXPECT_EQ(ResumedIn("ba", newest), 5);
}

// As where two jobs that share no folder left theirs, and a third one begins beside both.
TEST_F(FolderCopiesTest, OfTwoRunsWithOneOrderOneIsTaken) {
  std::vector<std::string> states;
  for (const char* letter : {"a", "b"}) {
    Job job = Life(letter, /*run=*/letter);
    job.TrainOn(letter[0]);
    Train(&job, 1);
    states.push_back(job.State());
  }
  ASSERT_NE(states[0], states[1]);
  EXPECT_EQ(ResumedIn("ab", states[0]), 1);
  EXPECT_EQ(ResumedIn("ba", states[1]), 1);
  EXPECT_EQ(ResumedIn("cb", states[1]), 1);
}

TEST_F(FolderCopiesTest, ADamagedCopyIsMadeGoodByTheOthers) {
  std::string first;
  Job job = Life("ab");
  Train(&job, 1);
  first = job.State();
  job.Step();
  job.Complete();
  Flip("a/step-0000000002/training.safetensors");
  EXPECT_EQ(ResumedIn("ab", job.State()), 2);
  EXPECT_EQ(ResumedIn("cab", job.State()), 2);
  Flip("b/step-0000000002/model.safetensors");
  EXPECT_EQ(ResumedIn("ab", first), 1);
}

TEST_F(FolderCopiesTest, ACopyThatMayBeWholeAndCannotBeReadStopsTheJob) {
  {
    Job job = Life("ab");
    Train(&job, 1);
  }
  Job job = Life("ab");
  job.Look();
  job.ranks()[1].storage->BeforeReads([](const std::string& path) {
    return path.ends_with("model.safetensors") ? ErrnoStatus(EIO, path) : absl::OkStatus();
  });
  const auto results = job.Restore("auto");
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kAborted);
}

TEST_F(FolderCopiesTest, ADiskThatIsFullCostsItsCopyAlone) {
  for (int broken = 0; broken < 2; ++broken) {
    fs::remove_all(folder_);
    Job job = Life("ab");
    Train(&job, 1);
    job.ranks()[static_cast<size_t>(broken)].storage->FailAt(2, /*all=*/true);
    job.Step();
    job.Complete();
    const std::string state = job.State();
    EXPECT_THAT(StepsIn(broken == 0 ? "a" : "b"), ElementsAre(1));
    EXPECT_THAT(StepsIn(broken == 0 ? "b" : "a"), ElementsAre(2, 1));
    EXPECT_EQ(ResumedIn("ab", state), 2);
  }
}

TEST_F(FolderCopiesTest, SavedBesideTheSteps) {
  Job job = Life("ab");
  job.Look();
  job.Enter();
  job.Step(/*due=*/true);
  const std::string state = job.State();
  const auto both = [&] { return !StepsIn("a").empty() && !StepsIn("b").empty(); };
  for (int i = 0; i < 100'000 && !both(); ++i) job.Step();
  EXPECT_THAT(StepsIn("a"), ElementsAre(1));
  EXPECT_THAT(StepsIn("b"), ElementsAre(1));
  EXPECT_EQ(ResumedIn("ab", state), 1);
}

TEST_F(FolderCopiesTest, APlaceThatTheUserNamedNeedNotBeOnEachHost) {
  std::string state;
  {
    Job job = Life("a");
    Train(&job, 1);
    state = job.State();
  }
  Job job = Life("bc", "another run");
  job.Look();
  const auto restored = job.Restore(folder_ + "/a");
  ASSERT_TRUE(restored[0].ok() && restored[0]->has_value()) << restored[0].status();
  EXPECT_EQ(job.State(1), state);
  Job missing = Life("bc", "another run");
  missing.Look();
  EXPECT_EQ(missing.Restore(folder_ + "/nowhere")[0].status().code(), absl::StatusCode::kNotFound);
}

// Nobody could write a whole copy. Where all have everything again, they do.
TEST_F(FolderCopiesTest, AStateInPartsIsNotCopied) {
  Job job = Life("ab");
  job.SetInParts(true);
  job.Look();
  job.Enter();
  job.Step(/*due=*/true);
  for (const Rank& rank : job.ranks()) {
    EXPECT_EQ(rank.checkpointer->part(), SavedPart::kNone);
    EXPECT_FALSE(rank.checkpointer->WantsSave());
  }
  job.Complete();
  EXPECT_THAT(StepsIn("a"), IsEmpty());
  EXPECT_THAT(StepsIn("b"), IsEmpty());
  job.SetInParts(false);
  job.Complete();
  EXPECT_THAT(StepsIn("a"), ElementsAre(1));
  EXPECT_THAT(StepsIn("b"), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::worker
