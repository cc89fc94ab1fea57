// SPDX-License-Identifier: Apache-2.0
// The calls with which a generation begins are those of this version of what workers say to each
// other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/flight_recorder.h"
#include "collectives/operation.h"
#include "collectives/reduce.h"
#include "tests/unit/worker/trainer_ranks.h"
#include "worker/generation_start.h"
#include "worker/peer_protocol.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAreArray;

// Of the calls below. Who changes them raises kPeerProtocol, and then this.
constexpr int kOfTheseCalls = 1;
constexpr char kRaise[] =
    "workers of this build and of the one before do not understand each other: raise kPeerProtocol "
    "(worker/peer_protocol.h says what that costs) in the commit that changes these calls, and "
    "kOfTheseCalls with it";

class PeerCallsTest : public TrainerRanks {
 protected:
  static JobSpec JobOf(int zero_stage) {
    JobSpec spec = TrainedJob();
    spec.mutable_train()->set_zero_stage(zero_stage);
    spec.mutable_train()->mutable_optimizer()->mutable_adam()->set_lr(0.01);
    return spec;
  }

  void Add(const Compiled& job) {
    ranks_.push_back(std::make_unique<TrainerRank>(job, &network_));
    ranks_.back()->SaveIn(folder_, "run");
  }

  // A generation of all ranks, each on a host of its own, up to the end of its first step. Returns
  // the calls that rank 0 makes.
  std::vector<std::string> Begin(const Compiled& job, int64_t start_step) {
    const int64_t number = ++generation_;
    std::vector<GroupMember> members = GroupMembers(
        ranks_,
        [](const std::unique_ptr<TrainerRank>& rank) -> Transport& { return rank->transport; });
    Generation generation;
    generation.set_generation(number);
    generation.set_start_step(start_step);
    for (GroupMember& member : members) {
      member.node = absl::StrCat("host-", member.rank);
      member.shards = DealShards(kTrainedShards, static_cast<int>(members.size()), member.rank);
      Member& told = *generation.add_members();
      told.set_rank(member.rank);
      told.set_host(member.node);
      told.mutable_address()->set_node_id(member.node);
    }
    const auto calls_before = ranks_[0]->transport.flight_recorder().Latest();
    {
      std::vector<std::jthread> threads;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        threads.emplace_back([&, r] {
          TrainerRank& rank = *ranks_[r];
          rank.board.EnterGeneration(number);
          rank.last.reset();
          const GroupSpec group{number, "small", "", members, static_cast<int>(r)};
          auto connected = rank.transport.Connect(group, absl::Now() + absl::Minutes(5));
          ASSERT_TRUE(connected.ok()) << connected.status();
          rank.last = *std::move(connected);
          rank.AfterFirstStep([&rank, number] {
            WorkerCommand command;
            command.mutable_regroup()->set_generation(number);
            rank.Command(command);
          });
          WorkerAssignment assignment;
          assignment.set_run_dir(folder_ + "/run");
          *assignment.mutable_spec() = job.compiled.job;
          FoldersBefore folders;
          std::vector<int> holders;
          const absl::Status joined = JoinGeneration({.assignment = &assignment,
                                                      .board = &rank.board,
                                                      .clock = Clock::Real(),
                                                      .trainer = rank.trainer.get(),
                                                      .checkpointer = rank.checkpointer.get(),
                                                      .resume = &rank.source,
                                                      .folders = &folders,
                                                      .data_stamp = 7},
                                                     generation, rank.last.get(), &holders);
          ASSERT_TRUE(joined.ok()) << joined;
          const auto outcome =
              rank.trainer->RunGeneration(rank.last.get(), members[r].shards, nullptr);
          ASSERT_TRUE(outcome.ok()) << outcome.status();
          EXPECT_TRUE(outcome->regrouped);
        });
      }
    }
    std::vector<std::string> calls;
    for (const FlightRecord& record : ranks_[0]->transport.flight_recorder().Snapshot()) {
      if (calls_before.has_value() && record.number <= calls_before->number) continue;
      const Operation& call = record.operation;
      if (!IsNumbered(call.kind)) continue;  // not a call that all make
      if (call.kind == OpKind::kTreeReduce && call.step > start_step + 1) break;
      calls.push_back(absl::StrCat(std::string(OpKindName(call.kind)), " ",
                                   std::string(DTypeName(call.dtype)), "[", call.count, "]",
                                   call.root < 0 ? "" : absl::StrCat(" ", call.root)));
    }
    return calls;
  }

  int64_t committed() const { return ranks_[0]->trainer->committed_step(); }

  Ranks ranks_;
};

TEST_F(PeerCallsTest, AreThoseOfThisVersion) {
  EXPECT_EQ(kPeerProtocol, kOfTheseCalls) << "these are the calls of another version";
}

TEST_F(PeerCallsTest, OfWorkersThatEachHaveAll) {
  const Compiled job(JobOf(0));
  Add(job);
  Add(job);
  // Who sees the same folders (twice two), what the data were, and what state there is.
  const std::vector<std::string> first = {
      "all_gather u8[16]", "all_gather u8[16]",    "all_gather u8[16]",
      "all_gather u8[16]", "all_gather u8[16]",    "all_gather u8[64]",
      "all_reduce i32[1]", "broadcast u8[4096] 0", "tree_reduce f32[176]"};
  EXPECT_THAT(Begin(job, 0), ElementsAreArray(first)) << kRaise;
  Add(job);
  const std::vector<std::string> later = {
      "all_gather u8[16]",  "all_gather u8[16]", "all_gather u8[16]",
      "all_gather u8[16]",  "all_gather u8[16]", "all_gather u8[64]",
      "replicate u8[1920]", "all_gather u8[8]",  "tree_reduce f32[176]"};
  EXPECT_THAT(Begin(job, committed()), ElementsAreArray(later)) << kRaise;
}

TEST_F(PeerCallsTest, OfWorkersWithPartsOfTheOptimizersState) {
  const Compiled job(JobOf(1));
  Add(job);
  Add(job);
  const std::vector<std::string> first = {
      "all_gather u8[16]",    "all_gather u8[16]",   "all_gather u8[16]",  "all_gather u8[16]",
      "all_gather u8[16]",    "share u8[2880]",      "all_gather u8[216]", "all_reduce i32[1]",
      "broadcast u8[4096] 0", "tree_reduce f32[176]"};
  EXPECT_THAT(Begin(job, 0), ElementsAreArray(first)) << kRaise;
  Add(job);
  const std::vector<std::string> later = {
      "all_gather u8[16]", "all_gather u8[16]",    "all_gather u8[16]",  "all_gather u8[16]",
      "all_gather u8[16]", "share u8[2880]",       "all_gather u8[216]", "replicate u8[512]",
      "all_gather u8[8]",  "replicate u8[436]",    "all_gather u8[8]",   "all_gather u8[384]",
      "all_reduce i32[1]", "tree_reduce f32[176]", "barrier u8[0]"};
  EXPECT_THAT(Begin(job, committed()), ElementsAreArray(later)) << kRaise;
}

}  // namespace
}  // namespace lockstep::worker
