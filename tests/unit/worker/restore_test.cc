// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/restore.h"

#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/resealed_manifest.h"
#include "tests/unit/worker/checkpoint_life.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

using Records = std::vector<checkpoint::DataRecord>;

class RestoreTest : public CheckpointerTest {};

TEST_F(RestoreTest, ADamagedOneIsLeftForTheOneBefore) {
  std::string first;
  Job job(folder_, 2);
  job.Enter();
  job.Step();
  job.Complete();
  first = job.State();
  job.Step();
  job.Complete();
  EXPECT_EQ(Resumed(3, "auto", job.State()), 2);
  Flip("step-0000000002/training-00002-of-00002.safetensors");
  EXPECT_EQ(Resumed(3, "auto", first), 1);
  fs::remove(folder_ + "/step-0000000001/manifest.json");
  EXPECT_EQ(Resumed(2, "auto", first), -1) << "none is whole: from the start";
}

// The job has stepped, so that nobody may stand still, and each listing, header and piece may take
// its time.
TEST_F(RestoreTest, TheBoardMovesWhileTheDiskIsWaitedFor) {
  {
    Job job(folder_, 2);
    job.Enter();
    job.Step();
    job.Complete();
  }
  Job job(folder_, 2);
  for (Rank& rank : job.ranks()) {
    WaitForBoardInReads(&rank);
  }
  for (const auto& restored : job.Restore("auto")) {
    ASSERT_TRUE(restored.ok() && restored->has_value()) << restored.status();
  }
}

TEST_F(RestoreTest, WhereARunLooks) {
  Job job(folder_, 1);
  job.Enter();
  job.Step();
  job.Complete();
  const std::string state = job.State();
  EXPECT_EQ(Resumed(2, "never", state, "another run"), -1);
  EXPECT_EQ(Resumed(2, "never", state), 1) << "its own, after the loss of all its workers";
  const std::string moved = folder_ + "/moved";
  fs::create_directory(moved);
  fs::rename(folder_ + "/step-0000000001", moved + "/step-0000000001");
  EXPECT_EQ(Resumed(2, "auto", state), -1);
  EXPECT_EQ(Resumed(2, moved, state), 1);
  EXPECT_EQ(Resumed(2, moved + "/step-0000000001", state), 1);
  // What is beside the checkpoint is found by its name.
  const std::string path = moved + "/step-0000000001";
  for (const char* end : {"/", "//", "/.", "/./"}) {
    Job other(folder_, 1);
    const auto restored = other.Restore(path + end);
    EXPECT_EQ(restored[0].value()->path, path) << end;
  }
  Job missing(folder_, 2);
  const auto results = missing.Restore(folder_ + "/nowhere");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
  Flip("moved/step-0000000001/model.safetensors");
  Job damaged(folder_, 2);
  EXPECT_EQ(damaged.Restore(moved)[0].status().code(), absl::StatusCode::kDataLoss);
}

// Generation 1 was stopped after step 3; generation 2 went on from 1 and knew of nothing later.
TEST_F(RestoreTest, ACheckpointIsNoFolderToSaveIn) {
  Job job(folder_, 1);
  job.Enter();
  job.Step();
  job.Complete();
  const std::string path = folder_ + "/step-0000000001";
  for (const std::string& resume : {std::string("auto"), std::string("never"), folder_}) {
    Job other(path, 2, "other");
    const auto results = other.Restore(resume);
    EXPECT_EQ(results[0].status().code(), absl::StatusCode::kInvalidArgument) << resume;
    EXPECT_THAT(results[0].status().message(), HasSubstr("is a checkpoint itself"));
    EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
  }
}

TEST_F(RestoreTest, WhatCameAfterTheJobHadGoneOnIsNotTaken) {
  Job job(folder_, 1, "run", "", /*keep=*/3);
  job.Enter();
  job.Step();
  job.Complete();
  job.Step();
  job.Complete();
  const auto resumed = [&](int64_t step, int64_t previous, const std::string& run = "run") {
    Job next(folder_, 2, run);
    next.Know(1, step, previous);
    const auto restored = next.Restore("auto");
    EXPECT_TRUE(restored[1].ok()) << restored[1].status();
    return restored[0].ok() && restored[0]->has_value() ? (*restored[0])->manifest.step : -1;
  };
  EXPECT_EQ(resumed(1, 2), 1);
  EXPECT_EQ(resumed(2, 2), 2);
  EXPECT_EQ(resumed(1, 1), 2) << "the generation before saved it while no coordinator was there";
  EXPECT_EQ(resumed(1, 2, "another run"), 2);
  EXPECT_EQ(resumed(9, 2), 2) << "the newest is gone: the one before";
}

TEST_F(RestoreTest, AnotherJobsIsRefused) {
  {
    Job job(folder_, 1);
    job.Enter();
    job.Step();
    job.Complete();
  }
  Job other(folder_, 2);
  other.identity().plan_hash = "another";
  const std::string before = other.State();
  const auto results = other.Restore("auto");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results[0].status().message(), HasSubstr("another plan"));
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(other.State(), before);
}

TEST_F(RestoreTest, ALongerRunGoesOnFromOneThatHasEndedAlone) {
  Job longer(folder_, 1, "longer", "", 2, {}, R"({"epochs": 5})");
  {
    Job brief(folder_, 1, "brief", "", 2, {}, R"({"epochs": 3})");
    brief.Enter();
    brief.Step();
    brief.Complete();
    const absl::Status refused = longer.Restore("auto")[0].status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(),
                HasSubstr("of run brief, which is shorter and still holds the folder"));
  }
  const auto restored = longer.Restore("auto");
  ASSERT_TRUE(restored[0].ok()) << restored[0].status();
  EXPECT_EQ((*restored[0])->manifest.step, 1);
}

TEST_F(RestoreTest, WhoIsRefusedIsToldOfThePlaceThatWasNamed) {
  {
    Job job(folder_ + "/base", 1, "pretraining");
    job.Enter();
    job.Step();
    job.Complete();
  }
  const auto refused = [&](const std::string& folder, const std::string& resume) {
    Job other(folder, 1);
    other.identity().plan_hash = "another";
    return std::string(other.Restore(resume)[0].status().message());
  };
  EXPECT_THAT(refused(folder_ + "/base", "auto"),
              HasSubstr("take the job as it was, another checkpoint.dir, or resume: never"));
  EXPECT_THAT(refused(folder_ + "/tuned", folder_ + "/base"),
              HasSubstr("take the job as it was, another checkpoint.resume, or resume: never"));
}

TEST_F(RestoreTest, WhoNamesAPlaceIsToldOfThoseThatCameFarther) {
  for (const std::string run : {"base", "tuned"}) {
    Job job(folder_ + "/" + run, 1, run);
    if (run == "tuned") ASSERT_TRUE(job.Restore(folder_ + "/base")[0].ok());
    job.Enter();
    job.Step();
    job.Complete();
  }
  const auto said = [&](const std::string& resume, const std::string& plan) {
    Job job(folder_ + "/tuned", 1, "tuned again");
    if (!plan.empty()) {
      job.identity().plan_hash = plan;
      job.TakeOthers();
    }
    testing::internal::CaptureStderr();
    EXPECT_TRUE(job.Restore(resume)[0].ok());
    return testing::internal::GetCapturedStderr();
  };
  const std::string line =
      "/tuned/step-0000000002 is of the same training and step 2, and "
      "checkpoint.resume names one of step 1: resume: auto";
  EXPECT_THAT(said(folder_ + "/base", ""), HasSubstr(line));
  EXPECT_THAT(said(folder_ + "/tuned", ""), Not(HasSubstr("same training")));
  EXPECT_THAT(said("never", ""), Not(HasSubstr("same training")));
  EXPECT_THAT(said(folder_ + "/base", "another"), Not(HasSubstr("same training")));
}

// Nobody begins anew over what may be whole.
TEST_F(RestoreTest, WhatANewerVersionWroteEndsTheJob) {
  {
    Job job(folder_, 1);
    job.Enter();
    for (int i = 0; i < 2; ++i) {
      job.Step();
      job.Complete();
    }
  }
  const std::string newest = folder_ + "/step-0000000002";
  checkpoint::MakeNewer(newest + "/manifest.json");
  for (const std::string& resume : {std::string("auto"), newest}) {
    Job job(folder_, 2);
    const std::string before = job.State();
    const auto results = job.Restore(resume);
    EXPECT_EQ(results[0].status().code(), absl::StatusCode::kInvalidArgument) << resume;
    EXPECT_THAT(results[0].status().message(), HasSubstr(newest));
    EXPECT_THAT(results[0].status().message(), HasSubstr("'key_of_the_future'"));
    EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(job.State(), before);
  }
}

// Reading it takes long.
TEST_F(RestoreTest, TheDataIsLookedAtByTheRankThatFindsACheckpointWhichKnowsIts) {
  for (const bool known : {false, true}) {
    {
      Job job(folder_, 1);
      if (known) {
        job.FindData([](int) { return Records{{"train.csv", 9, 1}}; });
      }
      job.Enter();
      job.Step();
      job.Complete();
    }
    for (const uint64_t hash : {1, 2}) {
      int asked = 0;
      Job next(folder_, 2);
      next.FindData([&](int rank) {
        EXPECT_EQ(rank, 0);
        ++asked;
        return Records{{"train.csv", 9, hash}};
      });
      const auto results = next.Restore("auto");
      EXPECT_EQ(asked, known ? 1 : 0);
      EXPECT_EQ(results[0].ok(), !known || hash == 1) << results[0].status();
      if (!results[0].ok()) {
        EXPECT_THAT(results[0].status().message(), HasSubstr("train.csv is not what it was"));
      }
    }
    fs::remove_all(folder_);
  }
}

// With train.reproducible: false. Where each host has its own folder and files, one that has others
// is enough.
TEST_F(RestoreTest, AllRanksKnowThatOtherDataWasEvaluated) {
  for (const bool apart : {false, true}) {
    const std::vector<std::string> folders = {folder_ + "/a", folder_ + (apart ? "/b" : "/a")};
    const auto life = [&] { return Job(folders[0], 2, "run", "", 2, folders); };
    {
      Job job = life();
      job.FindData([](int) { return Records{{"test.csv", 9, 1}}; });
      job.Look();
      job.Enter();
      job.Step();
      job.Complete();
    }
    for (const uint64_t hash : {1, 2}) {
      Job next = life();
      next.TakeOthers();
      next.FindData([&](int rank) {
        return Records{{"test.csv", 9, rank == (apart ? 1 : 0) ? hash : 1}};
      });
      next.Look();
      for (const auto& restored : next.Restore("auto")) {
        ASSERT_TRUE(restored.ok() && restored->has_value()) << restored.status();
        EXPECT_EQ((*restored)->evaluated_other, hash == 2) << apart;
      }
    }
    fs::remove_all(folder_);
  }
}

// A life of two workers whose rank `rank` gets `error` when it reads a file with `part` in its
// path.
class FailingReads : public RestoreTest {
 protected:
  void SetUp() override {
    Job job(folder_, 2);
    job.Enter();
    for (int i = 0; i < 2; ++i) {
      job.Step();
      job.Complete();
    }
    state_ = job.State();
  }
  static void Fail(Job* job, int rank, const std::string& part, int error) {
    job->ranks()[rank].storage->BeforeReads([part, error](const std::string& path) {
      return absl::StrContains(path, part) ? ErrnoStatus(error, "read " + path) : absl::OkStatus();
    });
  }
  std::string state_;
  int looks_ = 0;
};

TEST_F(FailingReads, StopTheRestoreAndNameFileAndRank) {
  struct Case {
    int error;
    absl::StatusCode code;
  };
  constexpr Case kCases[] = {{EIO, absl::StatusCode::kUnavailable},
                             {ESTALE, absl::StatusCode::kUnavailable},
                             {EACCES, absl::StatusCode::kFailedPrecondition},
                             {ENOMEM, absl::StatusCode::kResourceExhausted},
                             {EMFILE, absl::StatusCode::kResourceExhausted}};
  const char* const kFiles[] = {"0002/manifest.json", "0002/model-00001-of-00002.safetensors",
                                "0002/training-00002-of-00002.safetensors", "0001/manifest.json"};
  for (const Case& each : kCases) {
    for (const char* file : kFiles) {
      for (int broken = 0; broken < 2; ++broken) {
        SCOPED_TRACE(absl::StrCat("errno ", each.error, ", ", file, ", rank ", broken));
        Job job(folder_, 2);
        const std::string initial = job.State();
        Fail(&job, broken, file, each.error);
        const auto results = job.Restore("auto");
        if (broken == 1 && absl::StartsWith(file, "0001")) {
          EXPECT_TRUE(results[1].ok()) << "rank 0 alone looks at older ones";
          continue;
        }
        const absl::Status& failed = results[broken].status();
        EXPECT_EQ(failed.code(), each.code);
        EXPECT_THAT(std::string(failed.message()), HasSubstr(file));
        EXPECT_THAT(std::string(failed.message()), HasSubstr(absl::StrCat("rank ", broken)));
        EXPECT_THAT(std::string(failed.message()), HasSubstr("no older state is used"));
        EXPECT_EQ(results[1 - broken].status().code(), absl::StatusCode::kAborted);
        for (int r = 0; r < 2; ++r) EXPECT_EQ(job.State(r), initial);
      }
    }
  }
  EXPECT_EQ(Resumed(2, "auto", state_), 2) << "nothing was changed";
}

TEST_F(FailingReads, AListingThatFailsIsNoEmptyFolder) {
  Job job(folder_, 2);
  Fail(&job, 0, folder_, EIO);
  const auto results = job.Restore("auto");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
}

TEST_F(FailingReads, AFolderThatOneRankDoesNotSeeIsNoDamage) {
  Job job(folder_, 2);
  // As on a host where it is not mounted.
  job.ranks()[1].storage->BeforeReads([](const std::string& path) {
    return absl::StrContains(path, "manifest.json") ? ErrnoStatus(ENOENT, "open " + path)
                                                    : absl::OkStatus();
  });
  job.ranks()[0].storage->BeforeReads([this](const std::string& path) {
    // Gone for both once rank 0 has chosen.
    if (absl::EndsWith(path, "0002/manifest.json") && ++looks_ == 2)
      fs::rename(folder_, folder_ + "-away");
    return absl::OkStatus();
  });
  const auto results = job.Restore("auto");
  fs::rename(folder_ + "-away", folder_);
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(results[1].ok());
  EXPECT_TRUE(absl::IsUnavailable(results[0].status()) || absl::IsAborted(results[0].status()))
      << results[0].status();
  EXPECT_THAT(
      std::string(results[0].status().message()) + std::string(results[1].status().message()),
      HasSubstr("though rank 0 has read it"));
}

TEST_F(FailingReads, AFileTruncatedWhileItIsReadIsDamage) {
  std::string first;
  {
    Job job(folder_, 1);
    fs::rename(folder_ + "/step-0000000002", folder_ + "-two");
    ASSERT_TRUE(job.Restore("auto")[0].ok());
    first = job.State();
    fs::rename(folder_ + "-two", folder_ + "/step-0000000002");
  }
  Job job(folder_, 1);
  const std::string file = folder_ + "/step-0000000002/model-00002-of-00002.safetensors";
  int reads = 0;
  job.ranks()[0].storage->BeforeReads([&](const std::string& path) {
    // Hash, then header and tensors: it is cut short between the header and the tensors.
    if (path == file && ++reads == 6) fs::resize_file(path, fs::file_size(path) / 2);
    return absl::OkStatus();
  });
  const auto results = job.Restore("auto");
  ASSERT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_GE(reads, 6);
  EXPECT_EQ((*results[0])->manifest.step, 1);
  EXPECT_EQ(job.State(), first);
}

TEST_F(RestoreTest, ARunMissesTheCheckpointsThatItHad) {
  const std::string run_dir = folder_ + "-runs/tiny-1";
  const std::string next_dir = folder_ + "-runs/tiny-2";
  fs::create_directories(run_dir);
  fs::create_directories(next_dir);
  {
    Job job(folder_, 2, "run", run_dir);
    EXPECT_TRUE(job.Restore("auto")[0].ok()) << "there were none";
    job.Enter();
    job.Step();
    job.Complete();
  }
  fs::remove_all(folder_);
  {
    Job job(folder_, 2, "run", run_dir);
    const auto results = job.Restore("auto");
    EXPECT_EQ(results[0].status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(results[0].status().message()), HasSubstr("this run has saved"));
    EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
  }
  Job next(folder_, 1, "run 2", next_dir);
  EXPECT_TRUE(next.Restore("auto")[0].ok()) << "who removes checkpoints begins anew";
  next.ranks()[0].storage->SetMountPoint("/elsewhere");
  EXPECT_EQ(next.Restore("auto")[0].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(next.Restore("never")[0].ok());
  fs::remove_all(folder_ + "-runs");
}

}  // namespace
}  // namespace lockstep::worker
