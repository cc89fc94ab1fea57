// SPDX-License-Identifier: Apache-2.0
#include "worker/state/recovery.h"

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
};

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() : plan_(*engine::Plan::Compile(engine::SmallMlp())) {}

  void AddRank() { Add(std::make_unique<FakeTransport>(&network_, plan_->state_bytes() + 4096)); }
  // On a host of its own, reached by TCP.
  void AddHost() {
    HostsTransport::Options options;
    options.shm.arena_bytes = plan_->state_bytes() + 4096;
    auto transport = HostsTransport::Create(options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    Add(*std::move(transport));
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

  // AgreeOnState on every rank at once. Rank `dying`, if there is one, does so in its nth call.
  std::vector<absl::StatusOr<StateAgreement>> Agree(int64_t start_step,
                                                    const std::vector<int64_t>& evaluated,
                                                    int dying = -1, int call = 0) {
    std::vector<GroupMember> members =
        GroupMembers(ranks_, [](const Rank& rank) -> Transport& { return *rank.transport; });
    for (GroupMember& member : members) {
      const int port = ranks_[static_cast<size_t>(member.rank)].transport->tcp_port();
      if (port == 0) continue;
      member.node = absl::StrCat("node-", member.rank);
      member.tcp_addresses = {absl::StrCat("127.0.0.1:", port)};
    }
    ++generation_;
    const absl::Time deadline = absl::Now() + absl::Seconds(100);
    std::vector<absl::StatusOr<StateAgreement>> results(ranks_.size(), absl::UnknownError(""));
    {
      std::vector<std::jthread> threads;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        threads.emplace_back([&, r] {
          Rank& rank = ranks_[r];
          auto communicator = rank.transport->Connect(
              {generation_, "job", "secret", members, static_cast<int>(r)}, deadline);
          ASSERT_TRUE(communicator.ok()) << communicator.status();
          DyingCommunicator mortal(communicator->get(), static_cast<int>(r) == dying ? call : -2);
          results[r] = AgreeOnState(&mortal, rank.executor.get(), rank.state, plan_->state_bytes(),
                                    start_step, evaluated[r], deadline);
        });
      }
    }
    return results;
  }

  const std::shared_ptr<const engine::Plan> plan_;
  FakeNetwork network_;
  std::vector<Rank> ranks_;
  int64_t generation_ = 0;
};

TEST_F(RecoveryTest, WhoHasAnotherStateGetsThatOfTheStartStep) {
  for (int i = 0; i < 4; ++i) AddRank();
  Train(&ranks_[1], 5);
  Train(&ranks_[3], 5);
  const auto results = Agree(5, {0, 5, 0, 4});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(results[r].ok()) << results[r].status();
    EXPECT_EQ(results[r]->first_holder(), 1);
    EXPECT_EQ(results[r]->copied, r == 0 || r == 2);
    EXPECT_EQ(results[r]->evaluated_step, 4);
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
  for (int i = 0; i < 3; ++i) AddHost();
  Train(&ranks_[0], 5);
  Train(&ranks_[1], 4);
  const auto results = Agree(5, {0, 0, 0});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(results[r].ok()) << results[r].status();
    EXPECT_EQ(results[r]->first_holder(), 0);
    EXPECT_EQ(results[r]->copied, r != 0);
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
    for (size_t r = 1; r < 3; ++r) EXPECT_FALSE(results[r].ok());
    EXPECT_EQ(ranks_[1].executor->committed_step(), 4);
    EXPECT_EQ(std::memcmp(ranks_[1].state, before.data(), before.size()), 0);
    EXPECT_EQ(ranks_[2].executor->committed_step(), 0);  // it is new
    ranks_.erase(ranks_.begin());
    for (const auto& result : Agree(4, {0, 0})) EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(std::memcmp(ranks_[1].state, before.data(), before.size()), 0);
  }
}

// A holder that has counted the evaluation of the step and one that has not: the copy is like one
// of them and no mixture.
TEST_F(RecoveryTest, DecisionsAboutEvaluationsComeFromOneHolder) {
  for (int i = 0; i < 3; ++i) AddRank();
  Train(&ranks_[0], 3);
  Train(&ranks_[1], 3);
  engine::Tracking after;
  after.evaluated_step = 3;
  after.best_step = 3;
  after.best = 0.5;
  after.stop_step = 3;
  after.stop_best = 0.25;
  after.stop_count = 2;
  ranks_[1].executor->SetTracking(after);
  const auto results = Agree(3, {0, 3, 0});
  ASSERT_TRUE(results[2].ok()) << results[2].status();
  const engine::Tracking tracking = ranks_[2].executor->tracking();
  EXPECT_EQ(tracking.evaluated_step, 0);
  EXPECT_EQ(tracking.best_step, 0);
  EXPECT_EQ(tracking.stop_count, 0);
  EXPECT_EQ(results[2]->evaluated_step, 0);  // so that all evaluate it again
}

TEST_F(RecoveryTest, AtTheStartAllHaveTheInitialState) {
  for (int i = 0; i < 2; ++i) AddRank();
  for (const auto& result : Agree(0, {0, 0})) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->copied);
  }
}

TEST_F(RecoveryTest, SaysWhenNobodyHasTheState) {
  for (int i = 0; i < 2; ++i) AddRank();
  for (const auto& result : Agree(9, {0, 0})) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("after step 9"));
  }
}

}  // namespace
}  // namespace lockstep::worker
