// SPDX-License-Identifier: Apache-2.0
// The step loop over a fake data plane: ranks are threads, the test plays the coordinator.
#include "worker/step/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "checkpoint/checkpoint_folder.h"
#include "collectives/fake/fake_transport.h"
#include "collectives/shards.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/recording_storage.h"
#include "tests/unit/worker/fake_session.h"
#include "tests/unit/worker/file_limit.h"
#include "tests/unit/worker/group_members.h"
#include "tests/unit/worker/small_job.h"

namespace lockstep::worker {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kShards = 4;
constexpr int64_t kSteps = 6;

// Six steps are most of an epoch.
JobSpec TrainedJob() {
  JobSpec job = SmallJob();
  job.mutable_resources()->set_nproc_per_node(kShards);
  job.mutable_elastic()->set_min_workers(1);
  Train& train = *job.mutable_train();
  SyntheticClassification& data = *train.mutable_data()->mutable_synthetic();
  data.set_train_samples(300);
  // A state of less than a page, which nobody protects: a test writes into it.
  data.set_features(7);
  data.set_classes(3);
  train.mutable_model()->mutable_mlp()->set_hidden(0, 9);
  train.set_steps(kSteps);
  return job;
}

struct Rank {
  Rank(const Compiled& job, FakeNetwork* network)
      : transport(network, job.compiled.arena_bytes + (size_t{1} << 16)),
        link({}, FakeSession::On(&wire)) {
    link.Start();
    auto created = Trainer::Create(job.compiled, {.data = &job.data,
                                                  .transport = &transport,
                                                  .board = &board,
                                                  .link = &link,
                                                  .clock = Clock::Real()});
    EXPECT_TRUE(created.ok()) << created.status();
    trainer = *std::move(created);
  }
  // Has it save in `folder`, begin with what is there, and write the results of `run` beside it.
  void SaveIn(const std::string& folder, const std::string& run) {
    Checkpointer::Settings settings;
    settings.storage = &storage;
    settings.clock = Clock::Real();
    settings.folder = folder + "/saved";
    settings.worker = transport.address();
    settings.identity.run = run;
    settings.identity.plan_hash = trainer->plan().hash();
    settings.identity.train = "{}";
    settings.plan = &trainer->plan();
    settings.state = trainer->state();
    settings.board = &board;
    checkpointer = Checkpointer::Create(settings).value();
    source = {.folder = settings.folder, .identity = settings.identity, .storage = &storage};
    trainer->SaveWith(checkpointer.get(), &source);
    std::filesystem::create_directories(absl::StrCat(folder, "/", run, "/model"));
    record = std::make_unique<RunRecord>(absl::StrCat(folder, "/", run), kSteps);
  }
  void Command(const WorkerCommand& command) { wire.callbacks.on_command(command); }
  // Has `then` called after the first step of a generation.
  void AfterFirstStep(std::function<void()> then) {
    trainer->Observe(nullptr, nullptr, [this, then = std::move(then)] {
      if (then && board.first_commit != 0) then();
    });
  }

  FakeTransport transport;
  FakeSession::Wire wire;
  ControlLink link;
  ProgressBoard board;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Communicator> last;
  // With SaveIn.
  checkpoint::RecordingStorage storage;
  ResumeSource source;
  std::unique_ptr<Checkpointer> checkpointer;
  std::unique_ptr<RunRecord> record;
};

class TrainerTest : public ::testing::Test {
 protected:
  using Ranks = std::vector<std::unique_ptr<Rank>>;
  using Outcomes = std::vector<absl::StatusOr<TrainOutcome>>;

  ~TrainerTest() override { std::filesystem::remove_all(folder_); }

  Ranks Start(int count) {
    Ranks ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(std::make_unique<Rank>(job_, &network_));
    return ranks;
  }

  // One generation of `ranks` that goes on after `start_step`, each on a thread of its own.
  Outcomes Run(const Ranks& ranks, int64_t start_step) {
    const int64_t generation = ++generation_;
    const int world = static_cast<int>(ranks.size());
    std::vector<GroupMember> members = GroupMembers(
        ranks, [](const std::unique_ptr<Rank>& rank) -> Transport& { return rank->transport; });
    for (GroupMember& member : members) member.shards = DealShards(kShards, world, member.rank);
    Outcomes outcomes(ranks.size(), absl::UnknownError("did not run"));
    std::vector<std::jthread> threads;
    for (int r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        const auto at = static_cast<size_t>(r);
        outcomes[at] = RunRank(ranks[at].get(), {generation, "small", "", members, r}, start_step);
      });
    }
    threads.clear();
    return outcomes;
  }

  // The state that every rank must have in the end.
  void ExpectSameAs(const Ranks& expected, const Ranks& ranks) {
    const size_t bytes = job_.compiled.plan->state_bytes();
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->trainer->committed_step(), kSteps);
      EXPECT_EQ(std::memcmp(rank->trainer->state(), expected[0]->trainer->state(), bytes), 0);
    }
  }
  void ExpectTrains(const Ranks& ranks) {
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    ExpectSameAs(Undisturbed(), ranks);
  }
  Ranks Undisturbed() {
    Ranks alone = Start(1);
    const Outcomes outcomes = Run(alone, 0);
    EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].status();
    return alone;
  }

  // The best weights of the run in that folder; empty: none are there.
  std::string Best(const std::string& run) const {
    std::ifstream file(absl::StrCat(folder_, "/", run, "/model/best.safetensors"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  static void DrainAfterFirstStep(Rank* rank) {
    rank->AfterFirstStep([rank] {
      WorkerCommand command;
      command.mutable_drain();
      rank->Command(command);
    });
  }
  // The steps after which this rank has told of an evaluation.
  static std::vector<int64_t> Evaluated(Rank& rank) {
    std::vector<int64_t> steps;
    for (const WorkerMessage& message : rank.wire.Sent()) {
      if (message.has_eval()) steps.push_back(message.eval().step());
    }
    return steps;
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "trainer-", ::getpid());
  const Compiled job_{TrainedJob()};
  FakeNetwork network_;
  int64_t generation_ = 0;

 private:
  static absl::StatusOr<TrainOutcome> RunRank(Rank* rank, const GroupSpec& group,
                                              int64_t start_step) {
    const absl::Time deadline = absl::Now() + absl::Minutes(5);
    // As the worker does it: a step that is whole on every rank is finished before anything else.
    if (rank->last != nullptr) {
      const auto reduced = rank->last->NewestReduce();
      if (reduced.has_value() && rank->trainer->begun_step() < start_step) {
        LS_RETURN_IF_ERROR(rank->trainer->FinishStep(rank->last.get(), *reduced));
      }
      rank->last.reset();
    }
    rank->board.EnterGeneration(group.generation);
    LS_ASSIGN_OR_RETURN(rank->last, rank->transport.Connect(group, deadline));
    int first_holder = 0;
    const std::string run_dir = rank->record == nullptr ? "" : rank->record->run_dir();
    LS_RETURN_IF_ERROR(
        rank->trainer->JoinState(rank->last.get(), start_step, run_dir, &first_holder));
    return rank->trainer->RunGeneration(rank->last.get(),
                                        group.members[static_cast<size_t>(group.rank)].shards,
                                        group.rank == 0 ? rank->record.get() : nullptr);
  }
};

TEST_F(TrainerTest, AnyNumberOfRanksGivesTheSameState) {
  const Ranks alone = Undisturbed();
  for (int count = 2; count <= kShards; ++count) {
    SCOPED_TRACE(count);
    const Ranks ranks = Start(count);
    for (const auto& outcome : Run(ranks, 0)) {
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_FALSE(outcome->drained || outcome->regrouped);
    }
    ExpectSameAs(alone, ranks);
    // Rank 0 told the coordinator of the evaluation, which is the same too.
    EXPECT_EQ(ranks[0]->trainer->eval()->loss(), alone[0]->trainer->eval()->loss());
    EXPECT_EQ(ranks[0]->board.step, kSteps);
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
  EXPECT_LT(left_after, kSteps);
  ranks.insert(ranks.begin(), std::make_unique<Rank>(job_, &network_));
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
  ranks.push_back(std::make_unique<Rank>(job_, &network_));
  for (const auto& outcome : Run(ranks, start_step)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
  }
  ExpectSameAs(alone, ranks);
}

// What was evaluated of the steps that are lost says nothing of those that are made again.
TEST_F(TrainerTest, WhoGoesBackToTheStartEvaluatesAgain) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_zero_stage(1);
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  const Compiled job(spec);
  Ranks ranks;
  for (int i = 0; i < 4; ++i) ranks.push_back(std::make_unique<Rank>(job, &network_));
  ranks[0]->AfterFirstStep([&] {
    WorkerCommand command;
    command.mutable_regroup()->set_generation(generation_);
    ranks[0]->Command(command);
  });
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
  ranks.push_back(std::make_unique<Rank>(job, &network_));
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
      ranks.push_back(std::make_unique<Rank>(job, &network));
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

// Rank 0 puts the best weights of the checkpoint into the run's folder. Should it die over that,
// the others have the state already, and one of them does it.
TEST_F(TrainerTest, BestWeightsComeBackThoughRankZeroDiesOverThem) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e-30);  // step 1 is the best
  const Compiled job(spec);
  const auto start = [&](const std::string& run, int count) {
    Ranks ranks;
    for (int i = 0; i < count; ++i) {
      ranks.push_back(std::make_unique<Rank>(job, &network_));
      ranks.back()->SaveIn(folder_, run);
    }
    return ranks;
  };
  const Ranks first = start("first", 1);
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string best = Best("first");
  ASSERT_FALSE(best.empty());

  Ranks ranks = start("second", 2);
  absl::Notification restored;
  ranks[1]->trainer->Observe(nullptr, nullptr, [&] {
    if (!restored.HasBeenNotified()) restored.Notify();
  });
  ranks[0]->storage.BeforeReads([&](const std::string& path) -> absl::Status {
    if (!absl::StrContains(path, "/best-")) return absl::OkStatus();
    restored.WaitForNotification();
    network_.AbortUpTo(generation_, "rank 0 died");
    return absl::UnavailableError("dead");
  });
  const Outcomes outcomes = Run(ranks, 0);
  EXPECT_TRUE(absl::IsUnavailable(outcomes[0].status())) << outcomes[0].status();
  EXPECT_TRUE(absl::IsAborted(outcomes[1].status())) << outcomes[1].status();
  EXPECT_EQ(Best("second"), "");
  ranks.erase(ranks.begin());
  for (const auto& outcome : Run(ranks, kSteps)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(Best("second") == best);
}

// Whoever asks for a drain gives a grace: nothing that takes time comes before the checkpoint.
TEST_F(TrainerTest, ADrainSavesBeforeItEvaluates) {
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
TEST_F(TrainerTest, WhatADrainCameBeforeIsEvaluatedByWhoGoesOn) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("2 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  const Compiled job(spec);
  const auto start = [&](const std::string& run) {
    Ranks ranks;
    ranks.push_back(std::make_unique<Rank>(job, &network_));
    ranks.back()->SaveIn(folder_ + "/" + (run == "whole" ? "a" : "b"), run);
    return ranks;
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
TEST_F(TrainerTest, WeightsThatAreNotTheBestAnyMoreAreNotKeptAsTheBest) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_model()->mutable_mlp()->set_hidden(0, 900);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e-3);  // each step is better
  const Compiled job(spec);
  Ranks ranks;
  ranks.push_back(std::make_unique<Rank>(job, &network_));
  std::filesystem::create_directories(folder_ + "/run/model");
  ranks[0]->record = std::make_unique<RunRecord>(folder_ + "/run", kSteps);
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

// A generation begins at the best step, and the disk has no room to write it again.
TEST_F(TrainerTest, TheBestThatIsThereStaysWhenItCannotBeWrittenAgain) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("2 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_model()->mutable_mlp()->set_hidden(0, 900);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e-30);  // step 2 is the best
  const Compiled job(spec);
  for (const std::string run : {"alone", "saved", "lost"}) {
    SCOPED_TRACE(run);
    Ranks ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.push_back(std::make_unique<Rank>(job, &network_));
      ranks.back()->record = std::make_unique<RunRecord>(folder_ + "/alone", kSteps);
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
TEST_F(TrainerTest, TheBestOfTheStepThatARunGoesOnAfterIsThere) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_model()->mutable_mlp()->set_hidden(0, 900);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e-3);  // each step is better
  const Compiled job(spec);
  const auto start = [&](const std::string& run) {
    Ranks ranks;
    ranks.push_back(std::make_unique<Rank>(job, &network_));
    ranks.back()->SaveIn(folder_, run);
    return ranks;
  };
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
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(kSteps);
  const Ranks third = start("third");
  for (const int64_t start_step : {int64_t{0}, kSteps}) {
    EXPECT_TRUE(std::filesystem::remove(beside));
    for (const auto& outcome : Run(third, start_step)) EXPECT_TRUE(outcome.ok());
    EXPECT_TRUE(Best("third") == best) << start_step;
  }
}

TEST_F(TrainerTest, BestWeightsOfAnotherRunAreNotTakenForThoseThatCannotBeSaved) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_best()->set_metric("loss");
  spec.mutable_train()->mutable_model()->mutable_mlp()->set_hidden(0, 900);
  const Compiled job(spec);
  Ranks ranks;
  ranks.push_back(std::make_unique<Rank>(job, &network_));
  ranks[0]->SaveIn(folder_, "run");
  const std::string beside = folder_ + "/saved/" + checkpoint::BestName(kSteps);
  std::filesystem::create_directories(folder_ + "/saved");
  std::ofstream(beside) << "of another run";
  const FileLimit limit(16 << 10);
  for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Best("run"), "");
  EXPECT_FALSE(std::filesystem::exists(beside));
}

TEST_F(TrainerTest, AnEarlyStopWithoutAnyNumberSaysSo) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->mutable_eval()->set_every("1 steps");
  spec.mutable_train()->mutable_early_stop()->set_metric("loss");
  spec.mutable_train()->mutable_early_stop()->set_patience(2);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(1e30);
  const Compiled job(spec);
  Ranks ranks;
  ranks.push_back(std::make_unique<Rank>(job, &network_));
  ranks[0]->record = std::make_unique<RunRecord>(folder_, kSteps);
  testing::internal::CaptureStderr();
  for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("stopped early after step 2: no better loss for 2 evaluations; none was a "
                        "number"));
}

TEST_F(TrainerTest, ACheckpointBeyondTheLastStepIsRefused) {
  const Ranks first = Start(1);
  first[0]->SaveIn(folder_, "first");
  for (const auto& outcome : Run(first, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_steps(kSteps - 1);
  const Compiled job(spec);
  Ranks ranks;
  for (int i = 0; i < 2; ++i) {
    ranks.push_back(std::make_unique<Rank>(job, &network_));
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

TEST_F(TrainerTest, WithoutACheckpointSectionNothingIsSavedAlone) {
  const Ranks alone = Undisturbed();
  EXPECT_EQ(alone[0]->trainer->SaveAlone().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lockstep::worker
