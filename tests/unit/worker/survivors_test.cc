// SPDX-License-Identifier: Apache-2.0
// Who is left without a coordinator saves together what each has a part of.
#include "worker/survivors.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "collectives/group_end.h"
#include "common/life.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/parts_communicator.h"
#include "tests/unit/worker/trainer_ranks.h"
#include "worker/control/membership.h"

namespace lockstep::worker {
namespace {

// Hears that the generation is over in the second step: when it has the step's reduction, or else
// as it waits for the others to begin the step too.
class OverInTheSecondStep : public PartsCommunicator {
 public:
  OverInTheSecondStep(std::unique_ptr<Communicator> inner, bool begins)
      : PartsCommunicator(std::move(inner)), begins_(begins) {}
  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override {
    auto reduced = PartsCommunicator::TreeReduce(args, deadline);
    over_ = args.step == 2;
    if (over_ && !begins_) return Over();
    return reduced;
  }
  absl::Status Barrier(absl::Time deadline) override {
    return over_ ? Over() : PartsCommunicator::Barrier(deadline);
  }
  absl::Status ExchangeRanges(float* data, int64_t count, absl::Span<const RangeTransfer> transfers,
                              absl::Time deadline) override {
    return over_ ? Over() : PartsCommunicator::ExchangeRanges(data, count, transfers, deadline);
  }

 private:
  static absl::Status Over() { return absl::AbortedError("rank 1 died"); }
  const bool begins_;
  bool over_ = false;
};

class SurvivorsTest : public TrainerRanks {
 protected:
  // Its last generation, in which each was on a node of its own.
  Generation LastOf(const Ranks& ranks) const {
    Generation last;
    last.set_generation(generation_);
    last.set_shards(kTrainedShards);
    for (const auto& rank : ranks) {
      Member& member = *last.add_members();
      member.set_rank(last.members_size() - 1);
      member.set_incarnation(rank->transport.address());
      member.mutable_address()->set_shm(rank->transport.address());
      member.mutable_address()->set_key(rank->transport.key());
      member.mutable_address()->set_node_id(absl::StrCat("node of ", rank->transport.address()));
    }
    return last;
  }
  // What `rank` saves with the others that rank 1 has left.
  static absl::StatusOr<std::string> SaveTogether(TrainerRank* rank, const Generation& last) {
    WorkerBootstrap bootstrap;
    bootstrap.set_node_id(absl::StrCat("node of ", rank->transport.address()));
    bootstrap.mutable_assignment()->set_incarnation(rank->transport.address());
    const auto life = LifePage::Create(1).value();
    Survivors survivors;
    survivors.NoteGeneration(last);
    survivors.NoteLost(GroupOf(last, bootstrap), {EndCause::kPeerDied, 1});
    return survivors.SaveTogether(
        {.newest_generation = last.generation(),
         .bootstrap = &bootstrap,
         .life = life.get(),
         .transport = &rank->transport,
         .trainer = rank->trainer.get(),
         .clock = Clock::Real(),
         .catch_up =
             [rank](int64_t start_step) {
               return rank->trainer->CatchUp(rank->last.get(), start_step);
             },
         .look_at_folders = [](const Generation&, Communicator*) { return absl::OkStatus(); }});
  }
};

// Each part of the moments is on two of three ranks. Where one of them is gone, the other one may
// be behind in the step that the third one has begun: it has what it needs to begin it, too.
TEST_F(SurvivorsTest, WhoIsBehindFinishesTheStepThatAnotherHasBegun) {
  JobSpec spec = TrainedJob();
  spec.mutable_train()->set_zero_stage(1);
  const Compiled job(spec);
  Ranks undisturbed;
  undisturbed.push_back(std::make_unique<TrainerRank>(job, &network_));
  ASSERT_TRUE(Run(undisturbed, 0)[0].ok());
  for (const int begins : {0, 2}) {
    SCOPED_TRACE(begins);
    std::filesystem::remove_all(folder_);
    Ranks ranks = StartIn(folder_, absl::StrCat("first", begins), job, 3);
    for (int r = 0; r < 3; ++r) {
      ranks[static_cast<size_t>(r)]->wrap = [r, begins](std::unique_ptr<Communicator> inner) {
        return std::make_unique<OverInTheSecondStep>(std::move(inner), r == begins);
      };
    }
    for (const auto& outcome : Run(ranks, 0)) ASSERT_TRUE(absl::IsAborted(outcome.status()));
    const Generation last = LastOf(ranks);
    const auto dead = std::move(ranks[1]);  // its memory stays while one who is left maps it
    ranks.erase(ranks.begin() + 1);
    std::vector<absl::StatusOr<std::string>> saved(2, absl::UnknownError("did not run"));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] { saved[i] = SaveTogether(ranks[i].get(), last); });
    }
    threads.clear();
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(saved[i].ok()) << saved[i].status();
      EXPECT_THAT(*saved[i], testing::EndsWith(checkpoint::CheckpointName(2)));
    }
    ranks.clear();
    const Ranks next = StartIn(folder_, "next", job, 2);
    for (const auto& outcome : Run(next, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_EQ(next[0]->trainer->committed_step(), kTrainedSteps);
    for (const auto& rank : next) {
      EXPECT_EQ(std::memcmp(rank->trainer->state(), undisturbed[0]->trainer->state(),
                            job.compiled.plan->state_bytes()),
                0);
    }
  }
}

}  // namespace
}  // namespace lockstep::worker
