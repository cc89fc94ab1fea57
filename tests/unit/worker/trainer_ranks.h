// SPDX-License-Identifier: Apache-2.0
// Trainers over a fake data plane: ranks are threads, the test plays the coordinator.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_TRAINER_RANKS_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_TRAINER_RANKS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "collectives/shards.h"
#include "common/status.h"
#include "proto/message_json.h"
#include "tests/unit/checkpoint/recording_storage.h"
#include "tests/unit/worker/fake_session.h"
#include "tests/unit/worker/group_members.h"
#include "tests/unit/worker/small_job.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {

inline constexpr int kTrainedShards = 4;
inline constexpr int64_t kTrainedSteps = 6;

// Six steps are most of an epoch.
inline JobSpec TrainedJob() {
  JobSpec job = SmallJob();
  job.mutable_resources()->set_nproc_per_node(kTrainedShards);
  job.mutable_elastic()->set_min_workers(1);
  Train& train = *job.mutable_train();
  SyntheticClassification& data = *train.mutable_data()->mutable_synthetic();
  data.set_train_samples(300);
  // A state of less than a page, which nobody protects: a test writes into it.
  data.set_features(7);
  data.set_classes(3);
  train.mutable_model()->mutable_mlp()->set_hidden(0, 9);
  train.set_steps(kTrainedSteps);
  return job;
}

// A rank without a process.
struct TrainerRank {
  TrainerRank(const Compiled& job, FakeNetwork* network)
      : train(MessageJson(job.compiled.job.train())),
        transport(network, job.compiled.arena_bytes + (size_t{1} << 16)),
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
  void SaveIn(const std::string& folder, const std::string& run, bool reproducible = true,
              size_t part_bytes = CheckpointLayout::kPartBytes) {
    Checkpointer::Settings settings;
    settings.storage = &storage;
    settings.clock = Clock::Real();
    settings.folder = folder + "/saved";
    settings.part_bytes = part_bytes;
    settings.worker = transport.address();
    settings.identity.run = run;
    settings.identity.plan_hash = trainer->plan().hash();
    settings.identity.train = train;
    settings.plan = &trainer->plan();
    settings.state = trainer->state();
    settings.board = &board;
    source = {.folder = settings.folder,
              .identity = settings.identity,
              .reproducible = reproducible,
              .storage = &storage};
    settings.takes_over = source.takes_over();
    checkpointer = Checkpointer::Create(settings).value();
    trainer->SaveWith(checkpointer.get(), &source);
    std::filesystem::create_directories(absl::StrCat(folder, "/", run, "/model"));
    record = std::make_unique<RunRecord>(absl::StrCat(folder, "/", run), kTrainedSteps);
  }
  void Command(const WorkerCommand& command) { wire.callbacks.on_command(command); }
  // Has `then` called after the first step of a generation.
  void AfterFirstStep(std::function<void()> then) {
    trainer->Observe(nullptr, nullptr, [this, then = std::move(then)] {
      if (then && board.first_commit != 0) then();
    });
  }

  const std::string train;  // the job's section, as JSON
  FakeTransport transport;
  FakeSession::Wire wire;
  ControlLink link;
  ProgressBoard board;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Communicator> last;
  // What it connects to is wrapped by, if anything.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> wrap;
  // With SaveIn.
  checkpoint::RecordingStorage storage;
  ResumeSource source;
  std::unique_ptr<Checkpointer> checkpointer;
  std::unique_ptr<RunRecord> record;
};

// What a trainer does is asked of some of them, in generations that the test forms.
class TrainerRanks : public ::testing::Test {
 protected:
  using Ranks = std::vector<std::unique_ptr<TrainerRank>>;
  using Outcomes = std::vector<absl::StatusOr<TrainOutcome>>;

  ~TrainerRanks() override { std::filesystem::remove_all(folder_); }

  Ranks Start(int count) {
    Ranks ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(std::make_unique<TrainerRank>(job_, &network_));
    return ranks;
  }

  // Ranks that save there.
  Ranks StartIn(const std::string& folder, const std::string& run, const Compiled& job,
                int count = 1) {
    Ranks ranks;
    for (int i = 0; i < count; ++i) {
      ranks.push_back(std::make_unique<TrainerRank>(job, &network_));
      ranks.back()->SaveIn(folder, run);
    }
    return ranks;
  }

  // One generation of `ranks` that goes on after `start_step`, each on a thread of its own.
  Outcomes Run(const Ranks& ranks, int64_t start_step) {
    const int64_t generation = ++generation_;
    const int world = static_cast<int>(ranks.size());
    std::vector<GroupMember> members = GroupMembers(
        ranks,
        [](const std::unique_ptr<TrainerRank>& rank) -> Transport& { return rank->transport; });
    for (GroupMember& member : members)
      member.shards = DealShards(kTrainedShards, world, member.rank);
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
      EXPECT_EQ(rank->trainer->committed_step(), kTrainedSteps);
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

  // Has each of the next generations end after the step that follows its first one.
  void RegroupAfterFirstStep(TrainerRank* rank) {
    rank->AfterFirstStep([this, rank] {
      WorkerCommand command;
      command.mutable_regroup()->set_generation(generation_);
      rank->Command(command);
    });
  }
  static void DrainAfterFirstStep(TrainerRank* rank) {
    rank->AfterFirstStep([rank] {
      WorkerCommand command;
      command.mutable_drain();
      rank->Command(command);
    });
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "trainer-", ::getpid());
  const Compiled job_{TrainedJob()};
  FakeNetwork network_;
  int64_t generation_ = 0;

 private:
  static absl::StatusOr<TrainOutcome> RunRank(TrainerRank* rank, const GroupSpec& group,
                                              int64_t start_step) {
    const absl::Time deadline = absl::Now() + absl::Minutes(5);
    // As the worker does it: a step that is whole on every rank is finished before anything else.
    LS_RETURN_IF_ERROR(rank->trainer->CatchUp(rank->last.get(), start_step));
    rank->last.reset();
    rank->board.EnterGeneration(group.generation);
    LS_ASSIGN_OR_RETURN(rank->last, rank->transport.Connect(group, deadline));
    if (rank->wrap) rank->last = rank->wrap(std::move(rank->last));
    std::vector<int> holders;
    const std::string run_dir = rank->record == nullptr ? "" : rank->record->run_dir();
    Generation joined;
    joined.set_start_step(start_step);
    for (const GroupMember& member : group.members) {
      joined.add_members()->set_incarnation(member.shm_address);
    }
    LS_RETURN_IF_ERROR(rank->trainer->JoinState(rank->last.get(), joined, run_dir, &holders));
    return rank->trainer->RunGeneration(rank->last.get(),
                                        group.members[static_cast<size_t>(group.rank)].shards,
                                        group.rank == 0 ? rank->record.get() : nullptr);
  }
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_TRAINER_RANKS_H_
