// SPDX-License-Identifier: Apache-2.0
// What a trainer evaluates, and what it does with the best weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/sha256.h"
#include "tests/unit/worker/file_limit.h"
#include "tests/unit/worker/trainer_ranks.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

class TrainerEvalsTest : public TrainerRanks {
 protected:
  // One that keeps the best weights, which have no room in files of 16 KiB.
  static JobSpec LargeBestJob(const std::string& every, double lr) {
    JobSpec spec = TrainedJob();
    spec.mutable_train()->mutable_eval()->set_every(every);
    spec.mutable_train()->mutable_best()->set_metric("loss");
    spec.mutable_train()->mutable_model()->mutable_mlp()->set_hidden(0, 900);
    spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(lr);
    return spec;
  }
  // The file's bytes; empty: it is not there.
  static std::string Contents(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // The best weights of the run in that folder; empty: none are there.
  std::string Best(const std::string& run) const {
    return Contents(absl::StrCat(folder_, "/", run, "/model/best.safetensors"));
  }
  // Of what was saved; an empty one: nothing was.
  checkpoint::Manifest NewestManifest() const {
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_ + "/saved");
    const bool any = found.ok() && !found->checkpoints.empty();
    EXPECT_TRUE(any);
    return any ? found->checkpoints[0].manifest : checkpoint::Manifest();
  }
  // Has the rank die over the best weights when `restored`, of so many, have the state, too.
  void DiesOverTheBest(TrainerRank* rank, absl::BlockingCounter* restored) {
    rank->storage.BeforeReads([this, restored](const std::string& path) -> absl::Status {
      if (!absl::StrContains(path, "/best-")) return absl::OkStatus();
      restored->Wait();
      network_.AbortUpTo(generation_, "a rank died");
      return absl::UnavailableError("dead");
    });
  }
  // The next time that it has it.
  static void CountsRestored(TrainerRank* rank, absl::BlockingCounter* restored) {
    rank->trainer->Observe(nullptr, nullptr, [restored, counted = false]() mutable {
      if (!std::exchange(counted, true)) restored->DecrementCount();
    });
  }
  // The steps after which this rank has told of an evaluation.
  static std::vector<int64_t> Evaluated(TrainerRank& rank) {
    std::vector<int64_t> steps;
    for (const WorkerMessage& message : rank.wire.Sent()) {
      if (message.has_eval()) steps.push_back(message.eval().step());
    }
    return steps;
  }
};

// What was evaluated of the steps that are lost says nothing of those that are made again.
TEST_F(TrainerEvalsTest, WhoGoesBackToTheStartEvaluatesAgain) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_zero_stage(1);
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  const Compiled job(spec);
  Ranks ranks;
  for (int i = 0; i < 4; ++i) ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
  RegroupAfterFirstStep(ranks[0].get());
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const int64_t lost = ranks[0]->trainer->committed_step();
  ranks.erase(ranks.begin() + 1, ranks.begin() + 3);  // both that hold a part of the moments
  for (const auto& outcome : Run(ranks, lost)) {
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("both holders"));
  }
  // The generation ends between the first commit and its evaluation.
  ranks[0]->AfterFirstStep([&] { network_.AbortUpTo(generation_, "over"); });
  for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(absl::IsAborted(outcome.status()));
  ranks[0]->AfterFirstStep(nullptr);
  const size_t before = ranks[0]->wire.Sent().size();
  for (const auto& outcome : Run(ranks, 1)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<WorkerMessage> sent = ranks[0]->wire.Sent();
  std::vector<int64_t> evaluated;
  for (size_t i = before; i < sent.size(); ++i) {
    if (sent[i].has_eval()) evaluated.push_back(sent[i].eval().step());
  }
  EXPECT_THAT(evaluated, testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

// TrainerRank 0 puts the best weights of the checkpoint into the run's folder. Should it die over
// that, the others have the state already, and one of them does it: one that knows the checkpoint.
TEST_F(TrainerEvalsTest, BestWeightsComeBackThoughTwoDieOverThem) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e-30);  // step 1 is the best
  const Compiled job(spec);
  const auto start = [&](const std::string& run, int count) {
    return StartIn(folder_, run, job, count);
  };
  const Ranks first = start("first", 1);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("first");
  ASSERT_FALSE(best.empty());

  Ranks ranks = start("second", 3);
  absl::BlockingCounter others(2);
  for (const int rank : {1, 2}) CountsRestored(ranks[rank].get(), &others);
  DiesOverTheBest(ranks[0].get(), &others);
  Outcomes outcomes = Run(ranks, 0);
  EXPECT_TRUE(absl::IsUnavailable(outcomes[0].status())) << outcomes[0].status();
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(absl::IsAborted(outcomes[rank].status())) << outcomes[rank].status();
  }
  EXPECT_EQ(Best("second"), "");

  // Who replaces it copies the state, and so does the next one who brings them.
  ranks[0] = std::move(start("second", 1)[0]);
  absl::BlockingCounter copied(1);
  CountsRestored(ranks[0].get(), &copied);
  DiesOverTheBest(ranks[1].get(), &copied);
  outcomes = Run(ranks, kTrainedSteps);
  EXPECT_TRUE(absl::IsUnavailable(outcomes[1].status())) << outcomes[1].status();
  EXPECT_THAT(std::string(outcomes[1].status().message()), HasSubstr("rank 1 cannot read"));
  EXPECT_EQ(Best("second"), "");
  ranks.erase(ranks.begin() + 1);
  for (const auto& outcome : Run(ranks, kTrainedSteps)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
  }
  EXPECT_TRUE(Best("second") == best);
}

// Whoever asks for a drain gives a grace: nothing that takes time comes before the checkpoint.
TEST_F(TrainerEvalsTest, ADrainSavesBeforeItEvaluates) {
  Ranks ranks = Start(2);
  for (const auto& rank : ranks) rank->SaveIn(folder_, "first");
  DrainAfterFirstStep(ranks[1].get());
  bool saved_after = false;
  ranks[0]->storage.BeforeReads([&](const std::string&) {
    saved_after |= !Evaluated(*ranks[0]).empty();
    return absl::OkStatus();
  });
  for (const auto& outcome : Run(ranks, 0)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->drained);
  }
  EXPECT_FALSE(saved_after);
  EXPECT_THAT(Evaluated(*ranks[0]), testing::ElementsAre(2));
  EXPECT_EQ(ranks[0]->checkpointer->FindSaved(2).value(),
            ranks[0]->source.folder + "/step-0000000002");
}

// The evaluation that was due after the same step is in no checkpoint: whoever goes on makes it.
TEST_F(TrainerEvalsTest, WhatADrainCameBeforeIsEvaluatedByWhoGoesOn) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("2 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  const Compiled job(spec);
  const auto start = [&](const std::string& run) {
    return StartIn(folder_ + "/" + (run == "whole" ? "a" : "b"), run, job);
  };
  const Ranks whole = start("whole");
  for (const auto& outcome : Run(whole, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();

  const Ranks drained = start("drained");
  DrainAfterFirstStep(drained[0].get());
  for (const auto& outcome : Run(drained, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(Evaluated(*drained[0]), testing::ElementsAre(2));

  const Ranks second = start("second");
  for (const auto& outcome : Run(second, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(second[0]->board.resumed_step, 2);
  EXPECT_THAT(Evaluated(*second[0]), testing::ElementsAre(2, 4, 6));
  EXPECT_EQ(second[0]->trainer->eval()->loss(), whole[0]->trainer->eval()->loss());
  EXPECT_EQ(std::memcmp(second[0]->trainer->state(), whole[0]->trainer->state(),
                        job.compiled.plan->state_bytes()),
            0);
  EXPECT_TRUE(Best("b/second") == Best("a/whole"));
}

// What a full disk does not take leaves nothing under the name of the best that is not it.
TEST_F(TrainerEvalsTest, WeightsThatAreNotTheBestAnyMoreAreNotKeptAsTheBest) {
  const Compiled job(LargeBestJob("1 steps", 1e-3));  // each step is better
  Ranks ranks;
  ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
  std::filesystem::create_directories(folder_ + "/run/model");
  ranks[0]->record = std::make_unique<RunRecord>(folder_ + "/run", kTrainedSteps);
  ranks[0]->AfterFirstStep([&, told = false]() mutable {
    if (std::exchange(told, true)) return;
    WorkerCommand command;
    command.mutable_regroup()->set_generation(generation_);
    ranks[0]->Command(command);
  });
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(ranks[0]->trainer->committed_step(), 2);
  ASSERT_NE(Best("run"), "");
  std::string said;
  {
    const FileLimit limit(16 << 10);  // what is said has room
    testing::internal::CaptureStderr();
    for (const auto& outcome : Run(ranks, 2)) EXPECT_TRUE(outcome.ok()) << outcome.status();
    said = testing::internal::GetCapturedStderr();
  }
  EXPECT_EQ(Best("run"), "");
  EXPECT_THAT(said,
              HasSubstr("the best evaluation was that of step 6, whose weights are not saved"));
}

// Whoever stood still over writing it goes on when there are better ones, with the same folder.
TEST_F(TrainerEvalsTest, OlderWeightsThatCameOverTheBestAreReplacedAtTheEnd) {
  const Compiled job(LargeBestJob("2 steps", 1e-30));  // step 2 is the best
  for (const std::string run : {"alone", "saved"}) {
    SCOPED_TRACE(run);
    const Ranks ranks = StartIn(folder_ + "/" + run, run, job, 2);
    if (run == "alone") {
      for (const auto& rank : ranks) rank->trainer->SaveWith(nullptr, nullptr);
    }
    const std::string of = run + "/" + run;
    std::string best;
    ranks[0]->AfterFirstStep([&, ends = 0]() mutable {
      if (ends++ > 0) {
        best = Best(of);
        const std::string path = absl::StrCat(folder_, "/", of, "/model/best.safetensors");
        std::ofstream(path + ".new") << "of an earlier step";
        std::filesystem::rename(path + ".new", path);
        return;
      }
      WorkerCommand command;
      command.mutable_regroup()->set_generation(generation_);
      ranks[0]->Command(command);
    });
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    testing::internal::CaptureStderr();
    for (const auto& outcome : Run(ranks, 2)) EXPECT_TRUE(outcome.ok()) << outcome.status();
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_NE(best, "");
    EXPECT_TRUE(Best(of) == (run == "saved" ? best : ""));
    EXPECT_EQ(absl::StrContains(said, "whose weights are not saved"), run == "alone") << said;
  }
}

// A generation begins at the best step, and the disk has no room to write it again.
TEST_F(TrainerEvalsTest, TheBestThatIsThereStaysWhenItCannotBeWrittenAgain) {
  const Compiled job(LargeBestJob("2 steps", 1e-30));  // step 2 is the best
  for (const std::string run : {"alone", "saved", "lost"}) {
    SCOPED_TRACE(run);
    Ranks ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
      ranks.back()->record = std::make_unique<RunRecord>(folder_ + "/alone", kTrainedSteps);
      if (run != "alone") ranks.back()->SaveIn(folder_ + "/" + run, run);
    }
    std::filesystem::create_directories(folder_ + "/alone/model");
    ranks[0]->AfterFirstStep([&] {
      WorkerCommand command;
      command.mutable_regroup()->set_generation(generation_);
      ranks[0]->Command(command);
    });
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    const std::string of = run == "alone" ? run : run + "/" + run;
    const std::string best = Best(of);
    ASSERT_NE(best, "");
    // Then there is the one beside the checkpoints.
    if (run == "lost") std::filesystem::remove(folder_ + "/" + of + "/model/best.safetensors");
    ranks.erase(ranks.begin());
    const FileLimit limit(16 << 10);
    for (const auto& outcome : Run(ranks, 2)) EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(Best(of) == best);
  }
}

// The last step of the run is the best one, and its checkpoint is gone on from.
TEST_F(TrainerEvalsTest, TheBestOfTheStepThatARunGoesOnAfterIsThere) {
  const Compiled job(LargeBestJob("1 steps", 1e-3));  // each step is better
  const auto start = [&](const std::string& run) { return StartIn(folder_, run, job); };
  const Ranks first = start("first");
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("first");
  ASSERT_NE(best, "");
  {
    const Ranks second = start("second");
    const FileLimit limit(16 << 10);
    for (const auto& outcome : Run(second, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(Best("second") == best);
  }
  // Where it is not beside the checkpoint it is written from the state, and stays.
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(kTrainedSteps);
  const Ranks third = start("third");
  for (const int64_t start_step : {int64_t{0}, kTrainedSteps}) {
    EXPECT_TRUE(std::filesystem::remove(beside));
    for (const auto& outcome : Run(third, start_step)) EXPECT_TRUE(outcome.ok());
    EXPECT_TRUE(Best("third") == best) << start_step;
  }
}

// A run goes on in its own folder, and the best weights beside the checkpoint are lost: a full disk
// did not take them.
TEST_F(TrainerEvalsTest, TheBestInTheRunsFolderStaysWhereTheCheckpointsHaveNone) {
  const Compiled job(LargeBestJob("1 steps", 1e-30));  // step 1 is the best
  const Ranks first = StartIn(folder_, "run", job);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("run");
  ASSERT_NE(best, "");
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(1);
  ASSERT_TRUE(std::filesystem::remove(beside));
  const Ranks second = StartIn(folder_, "run", job);
  for (const auto& outcome : Run(second, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(Best("run") == best);
  EXPECT_TRUE(Contents(beside) == best) << "there is room again";
}

// They are beside the checkpoint, and the disk of the run's folder has no room for a copy.
TEST_F(TrainerEvalsTest, TheBestInTheRunsFolderStaysWhenItCannotBeBrought) {
  const Compiled job(LargeBestJob("1 steps", 1e-30));
  const Ranks first = StartIn(folder_, "run", job);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("run");
  const std::string path = folder_ + "/run/model/best.safetensors";
  const Ranks second = StartIn(folder_, "run", job);
  second[0]->storage.FailOn("link best.safetensors");
  for (const auto& outcome : Run(second, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(Best("run") == best);
  // What is there and is not that may be of steps that are made again.
  std::ofstream(path) << "of a later step";
  const Ranks third = StartIn(folder_, "run", job);
  third[0]->storage.FailOn("link best.safetensors");
  for (const auto& outcome : Run(third, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Best("run"), "");
}

TEST_F(TrainerEvalsTest, TheBestOfTheStepThatARunGoesOnAfterStaysWhenItCannotBeWritten) {
  const Compiled job(LargeBestJob("1 steps", 1e-3));  // each step is better
  const Ranks first = StartIn(folder_, "run", job);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("run");
  ASSERT_NE(best, "");
  ASSERT_TRUE(std::filesystem::remove(folder_ + "/saved/" + checkpoint::BestName(kTrainedSteps)));
  const Ranks second = StartIn(folder_, "run", job);
  const FileLimit limit(16 << 10);
  for (const auto& outcome : Run(second, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(Best("run") == best);
}

// With train.reproducible: false.
TEST_F(TrainerEvalsTest, ABestByAnotherMetricIsNone) {
  const auto spec = [](const char* metric, int64_t steps) {
    JobSpec job = LargeBestJob("1 steps", 1e-3);  // each step has a smaller loss
    Train& train = *job.mutable_train();
    train.set_steps(steps);
    train.mutable_best()->set_metric(metric);
    train.mutable_early_stop()->set_metric(metric);
    train.mutable_early_stop()->set_patience(3);
    return job;
  };
  const auto start = [&](const std::string& run, const Compiled& job) {
    Ranks ranks;
    ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
    ranks[0]->SaveIn(folder_, run, /*reproducible=*/false);
    return ranks;
  };
  const Compiled half(spec("accuracy", 3));
  for (const auto& outcome : Run(start("first", half), 0)) ASSERT_TRUE(outcome.ok());
  const int64_t by_accuracy = NewestManifest().best_step;
  ASSERT_GT(by_accuracy, 0);
  const Compiled same(spec("accuracy", 3));
  for (const auto& outcome : Run(start("same", same), 0)) ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(NewestManifest().best_step, by_accuracy);
  const Compiled whole(spec("loss", kTrainedSteps));
  const Ranks ranks = start("second", whole);
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(ranks[0]->trainer->committed_step(), kTrainedSteps) << "stopped early";
  EXPECT_EQ(NewestManifest().step, kTrainedSteps);
  EXPECT_EQ(NewestManifest().best_step, kTrainedSteps);
  EXPECT_EQ(NewestManifest().best_sha256, checkpoint::Sha256Hex(Best("second")));
}

// With train.reproducible: false, from a run that stopped early.
TEST_F(TrainerEvalsTest, WhatWasEvaluatedOfOtherDataIsNothing) {
  JobSpec spec = LargeBestJob("1 steps", 1e-30);  // the first one is the best
  spec.mutable_train()->mutable_early_stop()->set_metric("loss");
  spec.mutable_train()->mutable_early_stop()->set_patience(2);
  const Compiled job(spec);
  spec.mutable_train()->mutable_data()->mutable_synthetic()->set_test_samples(90);
  const Compiled other(spec);
  const auto start = [&](const std::string& run, const Compiled& compiled) {
    Ranks ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.push_back(std::make_unique<TrainerRank>(compiled, &network_));
      ranks[i]->SaveIn(folder_, run, /*reproducible=*/false);
    }
    return ranks;
  };
  const Ranks first = start("first", job);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(Evaluated(*first[0]), testing::ElementsAre(1, 2, 3));
  const Ranks second = start("second", other);
  testing::internal::CaptureStderr();
  for (const auto& outcome : Run(second, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the files differ from those of the evaluations before"));
  EXPECT_THAT(Evaluated(*second[0]), testing::ElementsAre(3, 4, 5));
  for (const auto& rank : second) EXPECT_EQ(rank->trainer->eval()->samples(), 90);
  EXPECT_EQ(NewestManifest().best_step, 3);
  EXPECT_EQ(NewestManifest().best_sha256, checkpoint::Sha256Hex(Best("second")));
}

// It is not there, and comes at once: from the state.
TEST_F(TrainerEvalsTest, NoBetterWeightsAreWaitedForWhereTheBestAreThoseOfTheStateItself) {
  const Compiled job(LargeBestJob("1 steps", 1e-3));
  const Ranks first = StartIn(folder_, "first", job);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(std::filesystem::remove(folder_ + "/saved/" + checkpoint::BestName(kTrainedSteps)));
  const Ranks second = StartIn(folder_, "second", job);
  testing::internal::CaptureStderr();
  for (const auto& outcome : Run(second, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("the next better")));
  EXPECT_TRUE(Best("second") == Best("first"));
}

// A disk or a server that fails says nothing of what it has.
TEST_F(TrainerEvalsTest, TheBestBesideTheCheckpointsStaysWhenItCannotBeRead) {
  const Compiled job(LargeBestJob("2 steps", 1e-30));  // step 2 is the best
  Ranks ranks = StartIn(folder_, "run", job, 2);
  RegroupAfterFirstStep(ranks[0].get());
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("run");
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(2);
  ASSERT_NE(best, "");
  std::filesystem::remove(folder_ + "/run/model/best.safetensors");
  ranks.erase(ranks.begin());
  ranks[0]->storage.BeforeReads([](const std::string& path) {
    return absl::StrContains(path, "/best-") ? absl::UnavailableError(path) : absl::OkStatus();
  });
  const FileLimit limit(16 << 10);
  for (const auto& outcome : Run(ranks, 2)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(Contents(beside) == best);
}

// Those beside the checkpoints that have their name are of an earlier run, whose checkpoints know
// of them.
TEST_F(TrainerEvalsTest, BestWeightsOfAnotherRunAreNotTakenForThoseThatAreNotKept) {
  const Compiled job(LargeBestJob("6 steps", 1e-3));
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(kTrainedSteps);
  std::filesystem::create_directories(folder_ + "/saved");
  std::ofstream(beside) << "of another run";
  const Ranks ranks = StartIn(folder_, "run", job);
  ranks[0]->storage.FailOn("link best-");
  for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Contents(beside), "of another run");
  ASSERT_NE(Best("run"), "");
  EXPECT_EQ(NewestManifest().best_sha256, checkpoint::Sha256Hex(Best("run")));
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ + "/saved/best"));
}

TEST_F(TrainerEvalsTest, BestWeightsOfAnotherRunAreNotTakenForThoseThatCannotBeSaved) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_model()->mutable_mlp()->set_hidden(0, 900);
  const Compiled job(spec);
  const Ranks ranks = StartIn(folder_, "run", job);
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(kTrainedSteps);
  std::filesystem::create_directories(folder_ + "/saved");
  std::ofstream(beside) << "of another run";
  const FileLimit limit(16 << 10);
  for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Best("run"), "");
  EXPECT_EQ(Contents(beside), "of another run");
}

// Whoever saves the next checkpoint need not have written them, nor read them: rank 0 has died.
TEST_F(TrainerEvalsTest, ACheckpointKnowsTheBestWeightsThatAnotherRankHasWritten) {
  const Compiled job(LargeBestJob("2 steps", 1e-30));  // step 2 is the best
  Ranks ranks = StartIn(folder_, "run", job, 2);
  RegroupAfterFirstStep(ranks[0].get());
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("run");
  ASSERT_NE(best, "");
  for (const auto& outcome : Run(ranks, 2)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const int64_t step = ranks[0]->trainer->committed_step();
  ASSERT_GT(step, 2);
  ASSERT_LT(step, kTrainedSteps);
  ranks.erase(ranks.begin());
  ranks[0]->storage.BeforeReads([](const std::string& path) {
    return absl::StrContains(path, "/best-") ? absl::UnavailableError(path) : absl::OkStatus();
  });
  for (const auto& outcome : Run(ranks, step)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(NewestManifest().best_sha256, checkpoint::Sha256Hex(best));
}

// Hosts that share no folder: one joins after the best step, and is rank 0 or is not.
TEST_F(TrainerEvalsTest, BestWeightsThatAnotherHostHasAreNotMissing) {
  const Compiled job(LargeBestJob("2 steps", 1e-30));  // step 2 is the best
  for (const bool first : {false, true}) {
    const std::string folder = absl::StrCat(folder_, "/", first);
    Ranks ranks = StartIn(folder + "/a", "run", job);
    RegroupAfterFirstStep(ranks[0].get());
    for (const int64_t step : {0, 2}) {
      for (const auto& outcome : Run(ranks, step)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    }
    ASSERT_GT(ranks[0]->trainer->committed_step(), 2);
    ranks[0]->AfterFirstStep(nullptr);
    for (const bool lost : {false, true}) {
      if (lost) std::filesystem::remove_all(folder + "/a");
      Ranks joined = StartIn(folder + (lost ? "/c" : "/b"), "run", job);
      Ranks all;
      if (first) all.push_back(std::move(joined[0]));
      all.push_back(std::move(ranks[0]));
      if (!first) all.push_back(std::move(joined[0]));
      for (const auto& rank : all) rank->source.copies.writers = {0, 1};
      testing::internal::CaptureStderr();
      for (const auto& outcome : Run(all, all[first ? 1 : 0]->trainer->committed_step())) {
        EXPECT_TRUE(outcome.ok()) << outcome.status();
      }
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_EQ(absl::StrContains(said, "whose weights are not saved: there is no"), lost) << said;
      ranks[0] = std::move(all[first ? 1 : 0]);
    }
  }
}

// Of two hosts that share no folder one has lost its disk.
TEST_F(TrainerEvalsTest, NoBestWeightsAreWrittenWhereTheCheckpointsFolderIsNotMountedAnyMore) {
  const Compiled job(LargeBestJob("2 steps", 1e-30));  // step 2 is the best
  Ranks ranks = StartIn(folder_ + "/a", "run", job);
  ranks.push_back(std::move(StartIn(folder_ + "/b", "run", job)[0]));
  for (const auto& rank : ranks) rank->source.copies.writers = {0, 1};
  ranks[1]->storage.SetMountPoint("/elsewhere");
  for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  ranks.clear();
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/a/saved/" + checkpoint::BestName(2)));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/b/saved"));
}

TEST_F(TrainerEvalsTest, AnEarlyStopWithoutAnyNumberSaysSo) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  spec.mutable_train()->mutable_early_stop()->set_metric("loss");
  spec.mutable_train()->mutable_early_stop()->set_patience(2);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e30);
  const Compiled job(spec);
  Ranks ranks;
  ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
  ranks[0]->record = std::make_unique<RunRecord>(folder_, kTrainedSteps);
  testing::internal::CaptureStderr();
  for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("stopped early after step 2: no better loss for 2 evaluations; none was a "
                        "number"));
}

}  // namespace
}  // namespace lockstep::worker
