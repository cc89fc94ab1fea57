// SPDX-License-Identifier: Apache-2.0
// What becomes of checkpoints when their generation ends.
#include "absl/synchronization/notification.h"
#include "checkpoint/checkpoint_folder.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint_life.h"
#include "worker/checkpoint/checkpointer.h"

namespace lockstep::worker {
namespace {

// A death in the evaluation before it, or between the commit and the boundary.
TEST_F(CheckpointerTest, OneThatWasDueWhenTheGenerationEndedIsMadeUpFor) {
  Job job(folder_, 2);
  job.Enter();
  job.Step();
  job.Connect();
  job.Enter();
  for (Rank& rank : job.ranks()) rank.checkpointer->NoteDue(1);
  EXPECT_TRUE(job.ranks()[0].checkpointer->WantsSave());
  EXPECT_TRUE(job.StepUntilSaved(2));
  // It is there.
  job.Complete();
  const int64_t step = job.ranks()[0].executor->committed_step();
  job.Connect();
  job.Enter();
  for (Rank& rank : job.ranks()) {
    rank.checkpointer->NoteDue(step);
    EXPECT_FALSE(rank.checkpointer->WantsSave());
  }
}

TEST_F(CheckpointerTest, WhatAGenerationsEndCutShortIsSavedInTheNext) {
  Job job(folder_, 2);
  job.Enter();
  job.Step(/*due=*/true);
  // Nobody tells that the parts are durable: the generation ends.
  job.Connect();
  job.Enter();
  const auto saved = [&] {
    return !checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_)->checkpoints.empty();
  };
  for (int i = 0; i < 100'000 && !saved(); ++i) job.Step();
  EXPECT_TRUE(saved());
}

TEST_F(CheckpointerTest, AWholeOneWhosePublisherDiedIsSavedInTheNextGeneration) {
  Job job(folder_, 3);
  absl::Notification asked;
  job.Ask([&](const checkpoint::Manifest&) {
    asked.Notify();
    return absl::AbortedError("it dies here");
  });
  job.Enter();
  job.Step(/*due=*/true);
  for (int i = 0; i < 100'000 && !asked.HasBeenNotified(); ++i) job.Step();
  ASSERT_TRUE(asked.HasBeenNotified());
  job.Lose(0);
  job.Ask(nullptr);
  const int64_t step = job.ranks()[0].executor->committed_step();
  job.Connect();
  job.Enter();
  int64_t saved = 0;
  for (int i = 0; i < 100'000 && saved == 0; ++i) {
    job.Step();
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_);
    if (!found->checkpoints.empty()) saved = found->checkpoints[0].manifest.step;
  }
  EXPECT_GT(saved, step);
}

TEST_F(CheckpointerTest, OneThatWasPublishedIsNotSavedOnceMore) {
  Job job(folder_, 3);
  job.Enter();
  job.Step();
  job.Complete();
  job.Connect();
  job.Enter();
  job.Complete();  // waits until all have looked, and finds it there
  for (const Rank& rank : job.ranks()) EXPECT_FALSE(rank.checkpointer->WantsSave());
}

}  // namespace
}  // namespace lockstep::worker
