// SPDX-License-Identifier: Apache-2.0
// An evaluation that some ranks have counted when a worker dies, and others have not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "tests/unit/worker/parts_communicator.h"
#include "tests/unit/worker/trainer_ranks.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Once `over`, hears that the generation has ended: rank 0 when it has the evaluation and counts
// it, the others before they have it.
class OverInAnEvaluation : public PartsCommunicator {
 public:
  OverInAnEvaluation(std::unique_ptr<Communicator> inner, const bool* over)
      : PartsCommunicator(std::move(inner)), over_(*over) {}
  absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                         absl::Time deadline) override {
    absl::Status all = PartsCommunicator::AllGather(input, output, count, dtype, deadline);
    return over_ && rank() != 0 ? absl::AbortedError("a worker died") : all;
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override {
    if (over_) return absl::AbortedError("a worker died");
    return PartsCommunicator::AllReduce(data, count, dtype, op, order, deadline);
  }

 private:
  const bool& over_;
};

class TornEvalsTest : public TrainerRanks {
 protected:
  static JobSpec Spec() {
    JobSpec spec = TrainedJob();
    spec.mutable_elastic()->set_min_workers(kTrainedShards);
    spec.mutable_train()->mutable_eval()->set_every("2 steps");
    spec.mutable_train()->mutable_best()->set_metric("loss");
    spec.mutable_train()->mutable_early_stop()->set_metric("loss");
    spec.mutable_train()->mutable_early_stop()->set_patience(5);
    return spec;
  }

  // As many as the job has. Each saves a part of the state.
  Ranks StartAll(const std::string& folder, const std::string& run) {
    Ranks ranks = Start(0);
    for (int i = 0; i < kTrainedShards; ++i) Add(folder, run, &ranks);
    return ranks;
  }
  void Add(const std::string& folder, const std::string& run, Ranks* ranks) {
    ranks->push_back(std::make_unique<TrainerRank>(compiled_, &network_));
    ranks->back()->SaveIn(folder_ + folder, run, /*reproducible=*/true, /*part_bytes=*/64);
  }
  // The same in step 2, whose evaluation rank 0 alone has counted.
  Ranks StartTorn(const std::string& folder, const std::string& run) {
    Ranks ranks = StartAll(folder, run);
    bool over[kTrainedShards] = {};
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r]->wrap = [&over, r](std::unique_ptr<Communicator> inner) {
        return std::make_unique<OverInAnEvaluation>(std::move(inner), &over[r]);
      };
      ranks[r]->AfterFirstStep([&over, r] { over[r] = true; });
    }
    for (const auto& outcome : Run(ranks, 0)) EXPECT_TRUE(absl::IsAborted(outcome.status()));
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->trainer->committed_step(), 2);
      EXPECT_EQ(rank->trainer->eval().has_value(), rank == ranks[0]);
      rank->last.reset();
      rank->wrap = nullptr;
      rank->AfterFirstStep(nullptr);
    }
    return ranks;
  }
  // What the run in that folder has as the best weights.
  std::string Best(const std::string& run) const {
    std::ifstream file(folder_ + run + "/model/best.safetensors");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // The steps after which this rank has told of an evaluation.
  static std::vector<int64_t> Evaluated(TrainerRank& rank) {
    std::vector<int64_t> steps;
    for (const WorkerMessage& message : rank.wire.Sent()) {
      if (message.has_eval()) steps.push_back(message.eval().step());
    }
    return steps;
  }
  void ExpectSameState(const Ranks& expected, const Ranks& ranks) {
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->trainer->eval()->loss(), expected[0]->trainer->eval()->loss());
      EXPECT_EQ(std::memcmp(rank->trainer->state(), expected[0]->trainer->state(),
                            compiled_.compiled.plan->state_bytes()),
                0);
    }
  }

  const Compiled compiled_{Spec()};
};

TEST_F(TornEvalsTest, AllMakeItAgain) {
  const Ranks whole = StartAll("/a", "whole");
  for (const auto& outcome : Run(whole, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  Ranks ranks = StartTorn("/b", "torn");
  ranks.pop_back();
  Add("/b", "torn", &ranks);
  for (const auto& outcome : Run(ranks, 2)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(Evaluated(*ranks[0]), ElementsAre(2, 2, 4, 6));
  ExpectSameState(whole, ranks);
  EXPECT_TRUE(Best("/b/torn") == Best("/a/whole"));
}

// The state is saved in parts, by ranks of both kinds.
TEST_F(TornEvalsTest, FewerThanTheJobHasAtLeastSaveNothingOfIt) {
  const Ranks whole = StartAll("/a", "whole");
  for (const auto& outcome : Run(whole, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  Ranks ranks = StartTorn("/b", "torn");
  ranks.resize(2);
  for (const auto& outcome : Run(ranks, 2)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->drained);
  }
  const auto saved = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_ + "/b/saved");
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_THAT(saved->checkpoints, SizeIs(1));
  const checkpoint::Manifest& manifest = saved->checkpoints[0].manifest;
  EXPECT_EQ(manifest.step, 2);
  EXPECT_EQ(manifest.evaluated_step, 0);
  EXPECT_EQ(manifest.eval, "");
  EXPECT_EQ(manifest.best_step, 0);

  const Ranks second = StartAll("/b", "second");
  for (const auto& outcome : Run(second, 0)) ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(Evaluated(*second[0]), ElementsAre(2, 4, 6));
  ExpectSameState(whole, second);
  EXPECT_TRUE(Best("/b/second") == Best("/a/whole"));
}

}  // namespace
}  // namespace lockstep::worker
