// SPDX-License-Identifier: Apache-2.0
#include "worker/state/recovery.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "collectives/hosts/hosts_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/group_members.h"
#include "tests/unit/worker/mortal_communicators.h"

namespace lockstep::worker {
namespace {

// One worker with an engine and its state in the arena.
struct Rank {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<engine::Pages> arena;
  std::unique_ptr<engine::Executor> executor;
  void* state = nullptr;
  std::string node;  // of one that is reached by TCP from others
};

// Copies one bit wrongly.
class DamagingCommunicator : public DyingCommunicator {
 public:
  DamagingCommunicator(Communicator* inner, int calls, bool damages)
      : DyingCommunicator(inner, calls), damages_(damages) {}
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override {
    absl::Status copied = DyingCommunicator::Replicate(data, bytes, have, deadline);
    if (damages_ && !have) static_cast<char*>(data)[bytes / 2] ^= 1;
    return copied;
  }

 private:
  const bool damages_;
};

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() : plan_(*engine::Plan::Compile(engine::SmallMlp())) {}

  void AddRank() { Add(std::make_unique<FakeTransport>(&network_, plan_->state_bytes() + 4096)); }
  // On that host, which others reach by TCP.
  void AddOn(const std::string& host) {
    HostsTransport::Options options;
    options.shm.arena_bytes = plan_->state_bytes() + 4096;
    auto transport = HostsTransport::Create(options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    Add(*std::move(transport));
    ranks_.back().node = host;
  }
  void Add(std::unique_ptr<Transport> transport) {
    Rank rank;
    rank.transport = std::move(transport);
    rank.state = *rank.transport->Allocate(plan_->state_bytes(), "the state");
    rank.arena = std::make_unique<engine::Pages>(plan_->arena_bytes());
    rank.executor = *engine::Executor::Create(plan_, {rank.state, rank.arena->data()});
    rank.executor->InitState();
    ranks_.push_back(std::move(rank));
  }

  // The state after `steps` steps.
  void Train(Rank* rank, int64_t steps) {
    engine::Pages gradients(plan_->gradient_count() * 4);
    for (int64_t step = 1; step <= steps; ++step) {
      const engine::TestBatch batch = engine::MakeBatch(plan_->spec(), step, 0);
      ASSERT_TRUE(
          rank->executor->RunShard(step, 0, 0, batch.fields(), gradients.floats(), {}).ok());
      const engine::GradientSlice whole{0, plan_->gradient_count(), gradients.floats()};
      rank->executor->Update(step, absl::MakeConstSpan(&whole, 1)).value();
    }
  }

  // What is decided when the evaluation of that step, the best so far, has been counted.
  static engine::Tracking Evaluated(int64_t step) {
    engine::Tracking tracking;
    tracking.evaluated_step = tracking.best_step = tracking.stop_step = step;
    tracking.best = 0.5;
    tracking.stop_best = 0.25;
    tracking.stop_count = 2;
    return tracking;
  }

  struct Result {
    absl::Status status;
    StateAgreement agreement;
  };
  // AgreeOnState on every rank at once. Rank `dying`, if there is one, does so in its nth call.
  std::vector<Result> Agree(int64_t start_step, const std::vector<int64_t>& evaluated,
                            int dying = -1, int call = 0) {
    std::vector<GroupMember> members =
        GroupMembers(ranks_, [](const Rank& rank) -> Transport& { return *rank.transport; });
    for (GroupMember& member : members) {
      const int port = ranks_[static_cast<size_t>(member.rank)].transport->tcp_port();
      if (port == 0) continue;
      member.node = ranks_[static_cast<size_t>(member.rank)].node;
      member.tcp_addresses = {absl::StrCat("127.0.0.1:", port)};
    }
    ++generation_;
    const absl::Time deadline = absl::Now() + absl::Seconds(100);
    std::vector<Result> results(ranks_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        threads.emplace_back([&, r] {
          Rank& rank = ranks_[r];
          auto communicator = rank.transport->Connect(
              {generation_, "job", "secret", members, static_cast<int>(r)}, deadline);
          ASSERT_TRUE(communicator.ok()) << communicator.status();
          DamagingCommunicator mortal(communicator->get(), static_cast<int>(r) == dying ? call : -2,
                                      static_cast<int>(r) == damaged_);
          results[r].agreement.evaluated_step = evaluated[r];
          results[r].status =
              AgreeOnState(&mortal, rank.executor.get(), rank.state, plan_->state_bytes(),
                           start_step, &results[r].agreement, deadline);
        });
      }
    }
    return results;
  }

  const std::shared_ptr<const engine::Plan> plan_;
  FakeNetwork network_;
  std::vector<Rank> ranks_;
  int64_t generation_ = 0;
  int damaged_ = -1;  // the rank that copies wrongly
};

TEST_F(RecoveryTest, WhoHasAnotherStateGetsThatOfTheStartStep) {
  for (int i = 0; i < 4; ++i) AddRank();
  Train(&ranks_[1], 5);
  Train(&ranks_[3], 5);
  const auto results = Agree(5, {0, 5, 0, 4});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(results[r].status.ok()) << results[r].status;
    EXPECT_EQ(results[r].agreement.holders.front(), 1);
    EXPECT_EQ(results[r].agreement.copied, r == 0 || r == 2);
    EXPECT_EQ(results[r].agreement.evaluated_step, 4);
    EXPECT_EQ(ranks_[r].executor->committed_step(), 5);
    EXPECT_EQ(std::memcmp(ranks_[r].state, ranks_[1].state, plan_->state_bytes()), 0);
  }
  // And they go on alike.
  engine::Pages gradients(plan_->gradient_count() * 4);
  const engine::TestBatch batch = engine::MakeBatch(plan_->spec(), 6, 0);
  for (Rank& rank : ranks_) {
    ASSERT_TRUE(rank.executor->RunShard(6, 0, 0, batch.fields(), gradients.floats(), {}).ok());
    const engine::GradientSlice whole{0, plan_->gradient_count(), gradients.floats()};
    rank.executor->Update(6, absl::MakeConstSpan(&whole, 1)).value();
  }
  for (const Rank& rank : ranks_) {
    EXPECT_EQ(std::memcmp(rank.state, ranks_[1].state, plan_->state_bytes()), 0);
  }
}

// A survivor that did not get all of the last step's sums before its generation ended is one step
// behind those that did. What is missing lay on hosts that may be gone: it takes the state.
TEST_F(RecoveryTest, ASurvivorOnAnotherHostThatIsBehindTakesTheState) {
  for (const char* host : {"a", "b", "c"}) AddOn(host);
  Train(&ranks_[0], 5);
  Train(&ranks_[1], 4);
  const auto results = Agree(5, {0, 0, 0});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(results[r].status.ok()) << results[r].status;
    EXPECT_EQ(results[r].agreement.holders.front(), 0);
    EXPECT_EQ(results[r].agreement.copied, r != 0);
    EXPECT_EQ(ranks_[r].executor->committed_step(), 5);
    EXPECT_EQ(std::memcmp(ranks_[r].state, ranks_[0].state, plan_->state_bytes()), 0);
  }
}

// Who alone has the newer state dies before the other has it whole and checked.
TEST_F(RecoveryTest, WhoIsBehindKeepsItsStateUntilItHasTheNewOne) {
  for (const int call : {0, 1, 2}) {
    SCOPED_TRACE(call);
    ranks_.clear();
    for (int i = 0; i < 3; ++i) AddRank();
    Train(&ranks_[0], 5);
    Train(&ranks_[1], 4);
    const std::string before(static_cast<char*>(ranks_[1].state), plan_->state_bytes());
    const auto results = Agree(5, {0, 0, 0}, /*dying=*/0, call);
    for (size_t r = 1; r < 3; ++r) EXPECT_FALSE(results[r].status.ok());
    EXPECT_EQ(ranks_[1].executor->committed_step(), 4);
    EXPECT_EQ(std::memcmp(ranks_[1].state, before.data(), before.size()), 0);
    EXPECT_EQ(ranks_[2].executor->committed_step(), 0);  // it is new
    // Who had it is known to all as soon as it is copied.
    for (size_t r = 1; call > 0 && r < 3; ++r) {
      EXPECT_THAT(results[r].agreement.holders, ::testing::ElementsAre(0));
    }
    // Moved on to, not assigned over: an executor's memory outlives it.
    std::rotate(ranks_.begin(), ranks_.begin() + 1, ranks_.end());
    ranks_.pop_back();
    for (const auto& result : Agree(4, {0, 0})) EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(std::memcmp(ranks_[1].state, before.data(), before.size()), 0);
  }
}

// A holder that has counted the evaluation of the step and one that has not: all go on as the
// latter, so that all make it again.
TEST_F(RecoveryTest, DecisionsAboutEvaluationsComeFromOneHolder) {
  for (const bool over_hosts : {false, true}) {
    SCOPED_TRACE(over_hosts);
    ranks_.clear();
    for (const char* host : {"a", "a", "b"}) {
      if (over_hosts) {
        AddOn(host);
      } else {
        AddRank();
      }
    }
    Train(&ranks_[0], 3);
    Train(&ranks_[2], 3);
    engine::Tracking before;
    before.evaluated_step = before.best_step = 2;
    before.best = 0.75;
    ranks_[2].executor->SetTracking(before);
    ranks_[0].executor->SetTracking(Evaluated(3));
    const auto results = Agree(3, {3, 0, 2});
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ASSERT_TRUE(results[r].status.ok()) << results[r].status;
      EXPECT_EQ(results[r].agreement.evaluated_step, 2);
      EXPECT_EQ(ranks_[r].executor->tracking().best_step, 2);
      EXPECT_EQ(ranks_[r].executor->tracking().stop_count, 0);
      EXPECT_EQ(std::memcmp(ranks_[r].state, ranks_[2].state, plan_->state_bytes()), 0);
    }
  }
}

TEST_F(RecoveryTest, HoldersAloneTakeTheSameDecisionsToo) {
  for (int i = 0; i < 2; ++i) AddRank();
  for (Rank& rank : ranks_) Train(&rank, 3);
  ranks_[1].executor->SetTracking(Evaluated(3));
  const auto results = Agree(3, {0, 3});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(results[r].status.ok()) << results[r].status;
    EXPECT_EQ(results[r].agreement.evaluated_step, 0);
    EXPECT_EQ(ranks_[r].executor->tracking().evaluated_step, 0);
  }
}

// Should the copy fail, and the one that had not counted it be gone, it is made again all the same.
TEST_F(RecoveryTest, WhoTakesDecisionsBackKnowsThatAlsoWhenTheCopyFails) {
  for (int i = 0; i < 3; ++i) AddRank();
  Train(&ranks_[0], 3);
  Train(&ranks_[1], 3);
  ranks_[0].executor->SetTracking(Evaluated(3));
  const auto results = Agree(3, {3, 0, 0}, /*dying=*/2, /*call=*/2);
  EXPECT_FALSE(results[0].status.ok());
  EXPECT_EQ(results[0].agreement.evaluated_step, 0);
  EXPECT_EQ(ranks_[0].executor->tracking().evaluated_step, 0);
}

// Another life of the one whose copy it is may have a good one: the job does not end for it.
TEST_F(RecoveryTest, ACopyThatIsDamagedIsFoundByWhoMadeIt) {
  for (int i = 0; i < 4; ++i) AddRank();
  Train(&ranks_[0], 3);
  Train(&ranks_[1], 3);
  damaged_ = 2;
  const auto results = Agree(3, {0, 0, 0, 0});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    EXPECT_EQ(results[r].status.code(),
              r == 2 ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk);
  }
  EXPECT_THAT(std::string(results[2].status.message()),
              ::testing::HasSubstr("is not what that rank has"));
  EXPECT_EQ(ranks_[2].executor->committed_step(), 0);
}

TEST_F(RecoveryTest, AtTheStartAllHaveTheInitialState) {
  for (int i = 0; i < 2; ++i) AddRank();
  for (const auto& result : Agree(0, {0, 0})) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_FALSE(result.agreement.copied);
  }
}

TEST_F(RecoveryTest, SaysWhenNobodyHasTheState) {
  for (int i = 0; i < 2; ++i) AddRank();
  for (const auto& result : Agree(9, {0, 0})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(result.status.message()), ::testing::HasSubstr("after step 9"));
  }
}

}  // namespace
}  // namespace lockstep::worker
