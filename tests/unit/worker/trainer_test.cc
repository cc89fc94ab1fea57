// SPDX-License-Identifier: Apache-2.0
// The step loop.
#include "worker/step/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "common/lock_file.h"
#include "data/npy.h"
#include "tests/unit/worker/parts_communicator.h"
#include "tests/unit/worker/trainer_ranks.h"

namespace lockstep::worker {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainerTest : public TrainerRanks {};

// Notes the earliest deadline.
class NotingDeadlines : public PartsCommunicator {
 public:
  NotingDeadlines(std::unique_ptr<Communicator> inner, absl::Time* earliest)
      : PartsCommunicator(std::move(inner)), earliest_(*earliest) {}
  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override {
    earliest_ = std::min(earliest_, deadline);
    return PartsCommunicator::TreeReduce(args, deadline);
  }
  absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                         absl::Time deadline) override {
    earliest_ = std::min(earliest_, deadline);
    return PartsCommunicator::AllGather(input, output, count, dtype, deadline);
  }
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override {
    earliest_ = std::min(earliest_, deadline);
    return PartsCommunicator::Replicate(data, bytes, have, deadline);
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override {
    earliest_ = std::min(earliest_, deadline);
    return PartsCommunicator::AllReduce(data, count, dtype, op, order, deadline);
  }
  absl::Status WaitCommitted(int64_t step, absl::Time deadline) override {
    earliest_ = std::min(earliest_, deadline);
    return PartsCommunicator::WaitCommitted(step, deadline);
  }

 private:
  absl::Time& earliest_;
};

TEST_F(TrainerTest, AnyNumberOfRanksGivesTheSameState) {
  const Ranks alone = Undisturbed();
  for (int count = 2; count <= kTrainedShards; ++count) {
    SCOPED_TRACE(count);
    const Ranks ranks = Start(count);
    for (const auto& outcome : Run(ranks, 0)) {
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_FALSE(outcome->drained || outcome->regrouped);
    }
    ExpectSameAs(alone, ranks);
    // TrainerRank 0 told the coordinator of the evaluation, which is the same too.
    EXPECT_EQ(ranks[0]->trainer->eval()->loss(), alone[0]->trainer->eval()->loss());
    EXPECT_EQ(ranks[0]->board.step, kTrainedSteps);
  }
}

// Gradients are reduced while others are computed, and nothing of a result goes before all have it.
TEST_F(TrainerTest, AResultStaysUntilAllHaveCommittedItsStep) {
  const Ranks alone = Undisturbed();
  for (const int world : {1, 2, kTrainedShards}) {
    SCOPED_TRACE(world);
    const Ranks ranks = Start(world);
    for (const auto& rank : ranks) {
      rank->wrap = [](std::unique_ptr<Communicator> inner) {
        return std::make_unique<PartsCommunicator>(std::move(inner));
      };
    }
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    ExpectSameAs(alone, ranks);
  }
}

TEST_F(TrainerTest, AllStopAfterTheStepInWhichOneWasAskedTo) {
  const Ranks alone = Undisturbed();
  const Ranks ranks = Start(3);
  DrainAfterFirstStep(ranks[2].get());
  const Outcomes outcomes = Run(ranks, 0);
  const int64_t stopped = ranks[2]->trainer->committed_step();
  EXPECT_EQ(stopped, 2);  // the wish rode in the second step's header
  for (size_t r = 0; r < ranks.size(); ++r) {
    ASSERT_TRUE(outcomes[r].ok()) << outcomes[r].status();
    EXPECT_TRUE(outcomes[r]->drained);
    EXPECT_EQ(ranks[r]->trainer->committed_step(), stopped);
  }
}

// Where a job ends below elastic.min_workers nobody has memory for a step.
TEST_F(TrainerTest, FewerThanTheJobHasAtLeastSaveWhatTheyHaveAndLeave) {
  for (const int zero_stage : {0, 1}) {
    SCOPED_TRACE(zero_stage);
    const int least = zero_stage == 0 ? kTrainedShards : 2;
    JobSpec spec = TrainedJob();
    spec.mutable_elastic()->set_min_workers(least);
    spec.mutable_train()->set_zero_stage(zero_stage);
    const Compiled job(spec);
    const std::string folder = absl::StrCat(folder_, "/", zero_stage);
    Ranks ranks = StartIn(folder, "run", job, least);
    RegroupAfterFirstStep(ranks[0].get());
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    const int64_t committed = ranks[0]->trainer->committed_step();
    ranks.resize(1);
    const Outcomes outcomes = Run(ranks, committed);
    ASSERT_TRUE(outcomes[0].ok()) << outcomes[0].status();
    EXPECT_TRUE(outcomes[0]->drained);
    EXPECT_EQ(ranks[0]->trainer->committed_step(), committed);
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder + "/saved");
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->checkpoints.size(), 1);
    EXPECT_EQ(found->checkpoints[0].manifest.step, committed);
  }
}

TEST_F(TrainerTest, MembersThatRegroupGoOnWithANewcomer) {
  const Ranks alone = Undisturbed();
  Ranks ranks = Start(2);
  ranks[0]->AfterFirstStep([&, told = false]() mutable {
    if (std::exchange(told, true)) return;
    WorkerCommand command;
    command.mutable_regroup()->set_generation(generation_);
    ranks[0]->Command(command);
  });
  for (const auto& outcome : Run(ranks, 0)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->regrouped);
  }
  const int64_t left_after = ranks[0]->trainer->committed_step();
  EXPECT_LT(left_after, kTrainedSteps);
  ranks.insert(ranks.begin(), std::make_unique<TrainerRank>(job_, &network_));
  // Who copies the state says at once that it has it.
  std::vector<bool> stepped;
  ranks[0]->trainer->Observe(nullptr, nullptr, [&, board = &ranks[0]->board] {
    EXPECT_NE(board->restored, 0);
    stepped.push_back(board->first_commit != 0);
  });
  for (const auto& outcome : Run(ranks, left_after)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_FALSE(outcome->regrouped);
  }
  EXPECT_THAT(stepped, testing::ElementsAre(false, true));
  for (const auto& rank : ranks) EXPECT_NE(rank->board.restored, 0);
  ExpectSameAs(alone, ranks);
}

// Whoever watches ends a generation in which nothing moves: what moves takes as long as it takes.
TEST_F(TrainerTest, WhereACoordinatorWatchesNothingHasADeadline) {
  Ranks ranks = Start(1);
  for (const auto& rank : ranks) rank->SaveIn(folder_, "run");
  RegroupAfterFirstStep(ranks[0].get());
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  ranks.push_back(std::make_unique<TrainerRank>(job_, &network_));
  ranks[1]->SaveIn(folder_, "run");
  ranks[0]->AfterFirstStep(nullptr);
  std::vector<absl::Time> earliest(2, absl::InfiniteFuture());
  for (size_t r = 0; r < 2; ++r) {
    ranks[r]->wrap = [&earliest, r](std::unique_ptr<Communicator> inner) {
      return std::make_unique<NotingDeadlines>(std::move(inner), &earliest[r]);
    };
  }
  const int64_t step = ranks[0]->trainer->committed_step();
  for (const auto& outcome : Run(ranks, step)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(earliest, Each(absl::InfiniteFuture()));
  ranks[0]->link.LoseCoordinator();
  EXPECT_LT(ranks[0]->trainer->Deadline(), absl::InfiniteFuture()) << "nobody else ends it";
}

TEST_F(TrainerTest, AnAbortedGenerationLosesNoStepThatWasCommitted) {
  const Ranks alone = Undisturbed();
  Ranks ranks = Start(3);
  ranks[1]->AfterFirstStep([&] { network_.AbortUpTo(generation_, "rank 2 died"); });
  for (const auto& outcome : Run(ranks, 0)) {
    EXPECT_TRUE(absl::IsAborted(outcome.status())) << outcome.status();
  }
  ranks.pop_back();
  int64_t start_step = 0;
  for (const auto& rank : ranks) {
    start_step = std::max(start_step, rank->trainer->committed_step());
  }
  EXPECT_EQ(start_step, 1);  // rank 1 had committed it
  ranks[1]->AfterFirstStep(nullptr);
  ranks.push_back(std::make_unique<TrainerRank>(job_, &network_));
  for (const auto& outcome : Run(ranks, start_step)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
  }
  ExpectSameAs(alone, ranks);
}

TEST_F(TrainerTest, RanksOfOneKindHaveOneDeviceHash) {
  const Ranks ranks = Start(2);
  std::vector<std::string> hashes;
  for (const auto& rank : ranks) hashes.push_back(rank->trainer->DeviceHash().value());
  EXPECT_FALSE(hashes[0].empty());
  EXPECT_THAT(hashes, Each(hashes[0]));
  ExpectTrains(ranks);  // the measurement has left nothing behind
}

TEST_F(TrainerTest, ANumberThatIsNotFiniteEndsTheJobWhereItSaysSo) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_on_nonfinite("fail");
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e30);
  const Compiled job(spec);
  Ranks ranks;
  ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
  const Outcomes outcomes = Run(ranks, 0);
  EXPECT_EQ(outcomes[0].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(outcomes[0].status().message()),
              HasSubstr("is not finite (on_nonfinite: fail)"));
}

TEST_F(TrainerTest, TheRanksThatGaveWhatIsNotFiniteAreNamed) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_on_nonfinite("fail");
  const Compiled job(spec);
  const auto ends = [&](const std::set<size_t>& broken) {
    FakeNetwork network;
    Ranks ranks;
    for (size_t r = 0; r < 4; ++r) {
      ranks.push_back(std::make_unique<TrainerRank>(job, &network));
      if (broken.count(r) == 0) continue;
      // Its own copy of the weights, and so its gradients; the others' are as they should be.
      auto* weights = static_cast<float*>(const_cast<void*>(ranks.back()->trainer->state()));
      std::fill_n(weights, 7, std::numeric_limits<float>::infinity());
    }
    return Run(ranks, 0);
  };
  for (const auto& outcome : ends({2})) {
    EXPECT_EQ(outcome.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("; it came from rank 2 alone"));
  }
  for (const auto& outcome : ends({0, 3})) {
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("; it came from ranks 0, 3"));
  }
  for (const auto& outcome : ends({0, 1, 2, 3})) {
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("; it came from all ranks"));
  }
}

// Labels of tokens that are negative are no targets.
JobSpec TokensJob(const std::string& folder, const std::vector<int64_t>& labels) {
  const auto count = static_cast<int64_t>(labels.size());
  const auto write = [&](const std::string& name, const std::vector<int64_t>& values) {
    std::ofstream(folder + name, std::ios::binary)
        << data::FormatNpyHeader(data::NpyType::kInt64, {count / 2, 2})
        << std::string(reinterpret_cast<const char*>(values.data()), values.size() * 8);
    return folder + name;
  };
  JobSpec job = TrainedJob();
  Train& train = *job.mutable_train();
  train.mutable_data()->clear_kind();
  train.mutable_data()->mutable_npy()->set_train_inputs(
      write("/x.npy", std::vector<int64_t>(labels.size(), 1)));
  train.mutable_data()->mutable_npy()->set_train_labels(write("/y.npy", labels));
  train.mutable_data()->mutable_npy()->set_vocab(5);
  Gpt& gpt = *train.mutable_model()->mutable_gpt();
  gpt.set_layers(1);
  gpt.set_heads(1);
  gpt.set_width(8);
  gpt.set_dropout(0);
  train.set_global_batch(4);
  train.mutable_eval()->set_every("never");
  return job;
}

TEST_F(TrainerTest, AStepWithoutATargetHasNoLossAndIsSaid) {
  for (const std::string precision : {"fp32", "fp16"}) {
    SCOPED_TRACE(precision);
    const std::string folder = absl::StrCat(folder_, "/", precision);
    std::filesystem::create_directories(folder);
    JobSpec spec = TokensJob(folder, std::vector<int64_t>(200, -100));
    spec.mutable_train()->set_precision(precision);
    const Compiled job(spec);
    Ranks ranks;
    ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
    ranks[0]->SaveIn(folder, "run");
    ranks[0]->record->SetWriter(true, false);
    testing::internal::CaptureStderr();
    const Outcomes outcomes = Run(ranks, 0);
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(outcomes[0].ok()) << outcomes[0].status();
    EXPECT_THAT(said, HasSubstr("step 1: no sample has a target; the step is skipped"));
    EXPECT_THAT(said, Not(HasSubstr("step 2:"))) << "once";
    EXPECT_TRUE(std::isnan(ranks[0]->board.loss.load()));
    ranks[0]->record->Write();
    const std::string lines = ReadText(folder + "/run/metrics.jsonl");
    EXPECT_THAT(lines, HasSubstr(R"("step":6,)"));
    EXPECT_THAT(lines, HasSubstr(R"("loss":null)"));
    EXPECT_THAT(lines, Not(HasSubstr(R"("loss":0)")));
    EXPECT_THAT(lines, HasSubstr(R"("skipped":true)"));
    EXPECT_THAT(lines, Not(HasSubstr(R"("skipped":false)")));
  }
}

TEST_F(TrainerTest, ACheckpointBeyondTheLastStepIsRefused) {
  const Ranks first = Start(1);
  first[0]->SaveIn(folder_, "first");
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_steps(kTrainedSteps - 1);
  const Compiled job(spec);
  Ranks ranks;
  for (int i = 0; i < 2; ++i) {
    ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
    ranks.back()->SaveIn(folder_, "second");
    ranks.back()->source.reproducible = false;
  }
  for (const auto& outcome : Run(ranks, 0)) {
    EXPECT_EQ(outcome.status().code(), absl::StatusCode::kInvalidArgument) << outcome.status();
    EXPECT_THAT(std::string(outcome.status().message()),
                HasSubstr("/saved/step-0000000006 is of step 6, and the run has 5 steps: raise "
                          "train.steps (or train.epochs)"));
  }
}

// It is the state that the run ends with, and in another folder.
TEST_F(TrainerTest, WhatARunGoesOnFromElsewhereComesIntoItsOwnFolder) {
  const std::string name = "/saved/step-0000000006", own = folder_ + "/own";
  const auto run = [&](const std::string& folder, const std::string& id, const std::string& from) {
    const Ranks ranks = Start(1);
    ranks[0]->SaveIn(folder, id);
    ranks[0]->source.resume = from;
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  };
  run(folder_, "first", "auto");
  run(own, "second", folder_ + name);
  EXPECT_TRUE(std::filesystem::exists(own + name + "/manifest.json"));
  run(own, "third", "auto");
  const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), own + "/saved");
  ASSERT_EQ(found->checkpoints.size(), 1u);
  EXPECT_EQ(found->checkpoints[0].manifest.run, "second") << "its own is not saved again";
}

TEST_F(TrainerTest, WithoutACheckpointSectionNothingIsSavedAlone) {
  const Ranks alone = Undisturbed();
  EXPECT_EQ(alone[0]->trainer->SaveAlone().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lockstep::worker
