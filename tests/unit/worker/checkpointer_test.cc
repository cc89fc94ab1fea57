// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpointer.h"

#include <atomic>
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
#include "tests/unit/worker/checkpoint_life.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;

TEST_F(CheckpointerTest, AnyNumberOfWorkersReadsWhatAnyNumberWrote) {
  for (const int writers : {1, 2, 3}) {
    fs::remove_all(folder_);
    std::string state;
    {
      Job job(folder_, writers);
      job.Enter();
      for (int i = 0; i < 5; ++i) job.Step();
      EvalResult eval;
      eval.set_step(4);
      eval.set_loss(0.1);
      job.decided() = {eval, 4, 3, ""};
      job.Complete();
      state = job.State();
    }
    for (const int readers : {1, 2, 4}) EXPECT_EQ(Resumed(readers, "auto", state), 5);
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_);
    ASSERT_EQ(found->checkpoints.size(), 1u);
    const checkpoint::Manifest& manifest = found->checkpoints[0].manifest;
    EXPECT_EQ(manifest.files.size(), writers == 1 ? 2u : 2u * writers + 1);
    EXPECT_EQ(manifest.evaluated_step, 4);
    EXPECT_EQ(manifest.best_step, 3);
    EXPECT_EQ(EvaluationOf(manifest)->loss(), 0.1);
    EXPECT_EQ(manifest.best_sha256, "");
    EXPECT_TRUE(Hidden().empty());
  }
}

// The weights may be missing: a full disk did not take them.
TEST_F(CheckpointerTest, TheLinkToTheBestWeightsNamesThemOrIsNotThere) {
  const auto link = [&] {
    std::error_code none;
    return fs::read_symlink(folder_ + "/best", none).string();
  };
  {
    Job job(folder_, 1);
    job.Enter();
    const auto save = [&](int64_t best_step) {
      job.Step();
      job.decided().best_step = best_step;
      job.decided().best_sha256 = checkpoint::Sha256Hex("weights");
      job.Complete();
      return link();
    };
    fs::create_directories(folder_);
    std::ofstream(folder_ + "/" + checkpoint::BestName(1)) << "weights";
    EXPECT_EQ(save(1), checkpoint::BestName(1));
    EXPECT_EQ(save(2), "");
    std::ofstream(folder_ + "/" + checkpoint::BestName(3)) << "weights";
    EXPECT_EQ(save(3), checkpoint::BestName(3));
    // One that knows of none may not know what the link is to another run that is there.
    Job other(folder_, 1, "other", "", 2, {}, "{}", /*takes_over=*/true);
    other.Enter();
    other.Step();
    other.Complete();
    EXPECT_EQ(fs::read_symlink(folder_ + "/last"), checkpoint::CheckpointName(1));
    EXPECT_EQ(link(), checkpoint::BestName(3));
  }
  Job next(folder_, 1, "next", "", 2, {}, "{}", /*takes_over=*/true);
  next.Enter();
  next.Step();
  next.Complete();
  EXPECT_EQ(fs::read_symlink(folder_ + "/last"), checkpoint::CheckpointName(1));
  EXPECT_EQ(link(), "");
}

TEST_F(CheckpointerTest, WhatSomebodyElsePutInThePlaceOfTheLinkStays) {
  Job job(folder_, 1);
  job.Enter();
  fs::create_directories(folder_ + "/best");
  std::ofstream(folder_ + "/best/notes.txt") << "kept";
  const auto save = [&](int64_t best_step) {
    job.Step();
    job.decided().best_step = best_step;
    job.decided().best_sha256 = checkpoint::Sha256Hex("weights");  // which are not there
    job.Complete();
  };
  save(0);
  EXPECT_TRUE(fs::exists(folder_ + "/best/notes.txt"));
  save(1);
  EXPECT_TRUE(fs::exists(folder_ + "/best/notes.txt"));
  fs::remove_all(folder_ + "/best");
  fs::create_symlink(checkpoint::CheckpointName(1), folder_ + "/best");
  save(0);
  EXPECT_EQ(fs::read_symlink(folder_ + "/best"), checkpoint::CheckpointName(1));
}

// Also for who dies over removing the old ones: with keep: 1 they are what the links named.
TEST_F(CheckpointerTest, TheLinksNameTheNewestThoughAnOldOneCannotBeRemoved) {
  Job job(folder_, 1, "run", "", /*keep=*/1);
  job.Enter();
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/" + checkpoint::BestName(1)) << "weights";
  job.decided().best_step = 1;
  job.decided().best_sha256 = checkpoint::Sha256Hex("weights");
  const auto target = [&](const char* link) {
    std::error_code none;
    return fs::read_symlink(folder_ + link, none).string();
  };
  for (const char* fails : {"nothing", "remove .saving-left", "rename .removing-step"}) {
    fs::remove(folder_ + "/best");
    fs::create_directories(folder_ + "/.saving-left");
    job.ranks()[0].storage->FailOn(fails);
    job.Step();
    job.Complete();
    EXPECT_EQ(target("/last"),
              checkpoint::CheckpointName(job.ranks()[0].executor->committed_step()));
    EXPECT_EQ(target("/best"), checkpoint::BestName(1)) << fails;
  }
}

// Over NFS who holds a folder is not told on other hosts.
TEST_F(CheckpointerTest, WhoTidiesOnAnotherHostTakesNothingFromWhoWrites) {
  using Locks = checkpoint::RecordingStorage::FolderLocks;
  for (const Locks locks : {Locks::kEverybodys, Locks::kOwnHosts, Locks::kNone}) {
    for (const int world : {1, 2}) {
      fs::remove_all(folder_);
      checkpoint::RecordingStorage elsewhere;
      elsewhere.SetFolderLocks(locks);
      Job job(folder_, world);
      job.Ask([&](const checkpoint::Manifest&) {
        EXPECT_TRUE(checkpoint::Tidy(&elsewhere, folder_, "other", -1).ok());
        return absl::OkStatus();
      });
      job.Enter();
      job.Step();
      job.Complete();
      EXPECT_TRUE(fs::exists(folder_ + "/step-0000000001"));
      EXPECT_TRUE(Hidden().empty());
    }
  }
}

// As where the file system has none.
TEST_F(CheckpointerTest, LinksThatCannotBeMadeAreToldOnce) {
  Job job(folder_, 1);
  job.Enter();
  job.ranks()[0].storage->FailOn("point last");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 4; ++i) {
    job.Step();
    job.Complete();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  const size_t first = said.find("the links last and best");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("the links last and best", first + 1), std::string::npos) << said;
  EXPECT_EQ(said.find("old files stay"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(folder_ + "/step-0000000001"));
}

TEST_F(CheckpointerTest, HoldsTheStateOfItsStepWhileTrainingGoesOn) {
  for (const int world : {1, 3}) {
    fs::remove_all(folder_);
    Job job(folder_, world);
    job.Enter();
    job.Step();
    job.Step(/*due=*/true);
    const std::string state = job.State();
    ASSERT_TRUE(job.StepUntilSaved(2));
    EXPECT_NE(job.State(), state);
    EXPECT_EQ(Resumed(2, "auto", state), 2);
  }
}

TEST_F(CheckpointerTest, OneThatFallsDueMeanwhileIsSavedAfterIt) {
  Job job(folder_, 2);
  absl::Notification go;  // before it rank 0 writes nothing
  job.FindData([&go](int) {
    go.WaitForNotification();
    return std::vector<checkpoint::DataRecord>();
  });
  job.Enter();
  job.Step(/*due=*/true);
  job.Step(/*due=*/true);  // the first is under way
  go.Notify();
  ASSERT_TRUE(job.StepUntilSaved(1));
  int64_t second = 0;
  for (int i = 0; i < 100'000 && second == 0; ++i) {
    job.Step();
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_);
    if (!found->checkpoints.empty()) second = found->checkpoints[0].manifest.step;
    if (second == 1) second = 0;
  }
  EXPECT_GT(second, 2);
}

TEST_F(CheckpointerTest, WishesByTheClock) {
  Job job(folder_, 1);
  job.Enter();
  Checkpointer& checkpointer = *job.ranks()[0].checkpointer;
  job.Step();
  EXPECT_FALSE(checkpointer.WantsSave());
  job.clock()->Advance(absl::Seconds(30));
  EXPECT_TRUE(checkpointer.WantsSave());
  job.Step();  // the wish rides in it
  EXPECT_FALSE(checkpointer.WantsSave());
  EXPECT_TRUE(job.StepUntilSaved(2));
}

TEST_F(CheckpointerTest, AFullDiskOfAnyRankCostsTheCheckpointAlone) {
  for (const int world : {1, 3}) {
    for (int broken = 0; broken < world; ++broken) {
      fs::remove_all(folder_);
      Job job(folder_, world);
      job.Enter();
      job.Step();
      job.Complete();
      const std::string state = job.State();
      job.Step();
      job.ranks()[broken].storage->FailAt(2, /*all=*/true);
      job.Complete();
      EXPECT_EQ(Resumed(2, "auto", state), 1);
      job.ranks()[broken].storage->FailAt(-1, false);
      job.Step();
      job.Complete();
      EXPECT_EQ(Resumed(2, "auto", job.State()), 3);
      EXPECT_TRUE(Hidden().empty());
    }
  }
}

TEST_F(CheckpointerTest, ARefusedOneDoesNotAppear) {
  for (const int world : {1, 3}) {
    fs::remove_all(folder_);
    Job job(folder_, world);
    job.Enter();
    job.Step();
    job.Complete();
    std::string asked;
    job.Ask([&](const checkpoint::Manifest& manifest) {
      asked = absl::StrCat("step ", manifest.step, " of generation ", manifest.generation);
      return absl::AbortedError("the job has a newer one");
    });
    const std::string state = job.State();
    job.Step();
    job.Complete();
    EXPECT_EQ(asked, "step 2 of generation 1");
    EXPECT_TRUE(Hidden().empty());
    EXPECT_EQ(Resumed(2, "auto", state), 1);
  }
}

// A worker stood still while its checkpoint was whole and not yet there.
TEST_F(CheckpointerTest, OneWhoseJobWentOnDoesNotBecomeTheNewest) {
  Job old(folder_, 1);
  old.Enter();
  for (int i = 0; i < 9; ++i) old.Step();
  std::string state;
  old.Ask([&](const checkpoint::Manifest&) {
    Job next(folder_, 1);
    next.Connect();
    next.Enter();
    next.Step();
    next.Complete();
    state = next.State();
    return absl::OkStatus();  // its coordinator cannot be asked
  });
  old.Complete();
  EXPECT_EQ(Resumed(1, "auto", state), 1);
  EXPECT_EQ(fs::read_symlink(folder_ + "/last"), "step-0000000001");
  EXPECT_TRUE(Hidden().empty());
}

TEST_F(CheckpointerTest, ASurvivorInNoGenerationSavesAllThatItHas) {
  Job job(folder_, 3);
  job.Enter();
  job.Step(/*due=*/true);  // cut short with its generation
  job.Step();
  const std::string state = job.State();
  const absl::StatusOr<std::string> saved =
      job.ranks()[2].checkpointer->SaveAlone(2, job.decided());
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(*saved, folder_ + "/step-0000000002");
  // The next one of its host finds that there.
  EXPECT_EQ(*job.ranks()[1].checkpointer->SaveAlone(2, job.decided()), *saved);
  EXPECT_THAT(job.ranks()[1].storage->done(),
              ::testing::Not(::testing::Contains(::testing::HasSubstr("rename"))));
  EXPECT_EQ(Resumed(2, "auto", state), 2);
}

// As over NFS: nobody sees whose turn it is.
TEST_F(CheckpointerTest, ASurvivorSavesWhereNoFolderCanBeHeld) {
  Job job(folder_, 1);
  job.Enter();
  job.Step();
  Rank& rank = job.ranks()[0];
  rank.storage->SetFolderLocks(checkpoint::RecordingStorage::FolderLocks::kNone);
  const absl::Time start = job.clock()->Now();
  const absl::StatusOr<std::string> saved = rank.checkpointer->SaveAlone(1, job.decided());
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(*saved, folder_ + "/step-0000000001");
  EXPECT_LT(job.clock()->Now() - start, absl::Seconds(30));
}

TEST_F(CheckpointerTest, ASurvivorThatCannotSaveSaysWhy) {
  Job job(folder_, 2);
  job.Enter();
  job.Step();
  job.Ask([](const checkpoint::Manifest&) { return absl::AbortedError("no"); });
  EXPECT_EQ(job.ranks()[1].checkpointer->SaveAlone(1, job.decided()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Hidden().empty());
}

TEST_F(CheckpointerTest, OlderOnesStayUntilANewOneHasBeenReadBack) {
  Job job(folder_, 2, "run", "", /*keep=*/1);
  job.Enter();
  job.Step();
  job.Complete();
  const std::string state = job.State();
  job.ranks()[1].storage->FlipReads("model-00002-of-00002");
  job.Step();
  job.Complete();
  EXPECT_EQ(Resumed(2, "auto", state), 1);
  job.ranks()[1].storage->FlipReads("");
  job.Step();
  job.Complete();
  EXPECT_EQ(Resumed(2, "auto", job.State()), 3);
  EXPECT_FALSE(fs::exists(folder_ + "/step-0000000001"));
  // Another life that keeps fewer removes none before it has saved its own.
  Job next(folder_, 1, "run", "", /*keep=*/1);
  next.Restore("never");
  next.Enter();
  next.ranks()[0].storage->FlipReads("model.safetensors");
  next.Step();
  next.Complete();
  EXPECT_EQ(Resumed(2, "auto", job.State()), 3);
}

// Returns the data records of the newest checkpoint in `folder`.
std::vector<checkpoint::DataRecord> NewestData(const std::string& folder) {
  const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder);
  return found->checkpoints.empty() ? std::vector<checkpoint::DataRecord>()
                                    : found->checkpoints[0].manifest.data;
}

TEST_F(CheckpointerTest, WhoPublishesLooksAtTheDataAsTheRunBegins) {
  Job job(folder_, 3);
  std::atomic<int> asked{0}, changed{0};
  absl::Notification looked;
  job.FindData([&](int rank) {
    EXPECT_EQ(rank, 0);
    EXPECT_EQ(asked.fetch_add(1), 0);
    const std::vector<checkpoint::DataRecord> found = {{"train.csv", 9, 1u + changed.load()}};
    looked.Notify();
    return found;
  });
  job.Enter();
  looked.WaitForNotification();
  changed = 1;
  job.Step();
  job.Complete();
  EXPECT_EQ(NewestData(folder_), (std::vector<checkpoint::DataRecord>{{"train.csv", 9, 1}}));
  job.Step();
  job.Complete();
  EXPECT_EQ(NewestData(folder_), (std::vector<checkpoint::DataRecord>{{"train.csv", 9, 1}}));
}

// The files may have changed since.
TEST_F(CheckpointerTest, ALaterPublisherTakesOverWhatTheRunBeganWith) {
  const std::vector<checkpoint::DataRecord> before = {{"train.csv", 9, 1}};
  const std::vector<checkpoint::DataRecord> after = {{"train.csv", 9, 2}};
  {
    Job job(folder_, 1);
    job.FindData([&](int) { return before; });
    job.Enter();
    job.Step();
    job.Complete();
  }
  ASSERT_EQ(NewestData(folder_), before);
  for (const std::string run : {"run", "a later run"}) {
    Job job(folder_, 1, run);
    job.FindData([&](int) { return after; });
    job.Connect();
    job.Enter();
    job.Step();
    job.Complete();
    EXPECT_EQ(NewestData(folder_), run == "run" ? before : after) << run;
  }
}

// It has opened the files later than the others, whose state it has.
TEST_F(CheckpointerTest, WhoCameLaterDoesNotTellWhatTheRunBeganWith) {
  Job job(folder_, 1);
  job.FindData([](int) { return std::vector<checkpoint::DataRecord>{{"train.csv", 9, 2}}; });
  auto& rank = job.ranks()[0];
  rank.checkpointer->Enter(*rank.communicator, /*step=*/7, /*restored=*/"", job.copies());
  job.Step();
  job.Complete();
  ASSERT_TRUE(fs::exists(folder_ + "/step-0000000001"));
  EXPECT_TRUE(NewestData(folder_).empty());
}

TEST_F(CheckpointerTest, WhoCameLaterAndOpenedTheSameTellsIt) {
  const std::vector<checkpoint::DataRecord> same = {{"train.csv", 9, 1}};
  Job job(folder_, 1);
  job.FindData([&](int) { return same; });
  auto& rank = job.ranks()[0];
  EXPECT_FALSE(rank.checkpointer->began());
  rank.checkpointer->KnowBegan();
  rank.checkpointer->Enter(*rank.communicator, /*step=*/7, /*restored=*/"", job.copies());
  EXPECT_TRUE(rank.checkpointer->began());
  job.Step();
  job.Complete();
  EXPECT_EQ(NewestData(folder_), same);
}

// A disk that fails for a moment does not leave it unknown for the rest of the run.
TEST_F(CheckpointerTest, WhatTheRunBeganWithIsLookedForAgainWhereTheFolderCouldNotBeRead) {
  const std::vector<checkpoint::DataRecord> before = {{"train.csv", 9, 1}};
  {
    Job job(folder_, 1);
    job.FindData([&](int) { return before; });
    job.Enter();
    job.Step();
    job.Complete();
  }
  std::atomic<int> reads{0};
  absl::Notification looked;
  Job job(folder_, 1);
  job.Connect();
  auto& rank = job.ranks()[0];
  rank.storage->BeforeReads([&](const std::string&) {  // first for what dead writers left
    const int read = reads.fetch_add(1) + 1;
    if (read == 2) looked.Notify();
    return read <= 2 ? absl::UnavailableError("I/O error") : absl::OkStatus();
  });
  rank.checkpointer->Enter(*rank.communicator, /*step=*/7, /*restored=*/"", job.copies());
  looked.WaitForNotification();
  job.Step();
  job.Complete();
  EXPECT_EQ(NewestData(folder_), before);
}

TEST_F(CheckpointerTest, WhoIsToLeaveDoesNotReadTheDataToItsEndFirst) {
  Job job(folder_, 1);
  job.DataHasNoEnd();
  job.Enter();
  job.Step();
  job.ranks()[0].checkpointer->Hurry();
  job.Complete();
  EXPECT_TRUE(fs::exists(folder_ + "/step-0000000001"));
}

TEST_F(CheckpointerTest, NothingIsWrittenWhereTheFolderIsNotMountedAnyMore) {
  Job job(folder_, 1);
  job.Enter();
  job.Step();
  job.Complete();
  job.ranks()[0].storage->SetMountPoint("/elsewhere");
  job.Step();
  job.Complete();
  EXPECT_FALSE(fs::exists(folder_ + "/step-0000000002"));
  job.ranks()[0].storage->SetMountPoint("");
  job.Step();
  job.Complete();
  EXPECT_TRUE(fs::exists(folder_ + "/step-0000000003"));
}

TEST_F(CheckpointerTest, NobodySavesAloneWhereTheFolderIsNotMountedAnyMore) {
  Job job(folder_, 1);
  Begin(&job);
  job.Step();
  const auto& rank = job.ranks()[0];
  rank.storage->SetMountPoint("/elsewhere");
  const size_t done = rank.storage->done().size();
  const absl::Status saved = rank.checkpointer->SaveAlone(1, job.decided()).status();
  EXPECT_EQ(saved.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(saved.message(), ::testing::HasSubstr("is that mounted?"));
  EXPECT_EQ(rank.storage->done().size(), done);
}

}  // namespace
}  // namespace lockstep::worker
