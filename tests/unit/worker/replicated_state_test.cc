// SPDX-License-Identifier: Apache-2.0
#include "worker/state/replicated_state.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/fake/fake_transport.h"
#include "common/clock.h"
#include "common/status.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/group_members.h"

namespace lockstep::worker {
namespace {

// Two workers with an engine each.
class ReplicatedStateTest : public ::testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<FakeTransport> transport;
    std::unique_ptr<engine::Pages> arena;
    std::unique_ptr<engine::Executor> executor;
    char* state = nullptr;
    std::unique_ptr<ReplicatedState> policy;
  };

  ReplicatedStateTest() : plan_(*engine::Plan::Compile(engine::SmallMlp())) {
    for (int i = 0; i < 2; ++i) {
      Rank rank;
      rank.transport = std::make_unique<FakeTransport>(&network_, plan_->state_bytes() + 4096);
      rank.state = static_cast<char*>(*rank.transport->Allocate(plan_->state_bytes(), "the state"));
      rank.arena = std::make_unique<engine::Pages>(plan_->arena_bytes());
      rank.executor = *engine::Executor::Create(plan_, {rank.state, rank.arena->data()});
      rank.executor->InitState();
      rank.policy = std::make_unique<ReplicatedState>(plan_.get(), rank.executor.get(), rank.state);
      ranks_.push_back(std::move(rank));
    }
  }

  // One step of this rank alone, through its policy.
  void Step(Rank* rank, int64_t step) {
    engine::Pages gradients(plan_->gradient_count() * 4);
    const engine::TestBatch batch = engine::MakeBatch(plan_->spec(), step, 0);
    ASSERT_TRUE(rank->executor->RunShard(step, 0, 0, batch.fields(), gradients.floats(), {}).ok());
    const engine::GradientSlice whole{0, plan_->gradient_count(), gradients.floats()};
    ASSERT_TRUE(rank->policy->Begin(step, absl::MakeConstSpan(&whole, 1)).ok());
    EXPECT_EQ(rank->executor->committed_step(), step) << "the update has one half";
    EXPECT_EQ(rank->executor->begun_step(), step);
  }

  // Returns what both ranks' policies say in one generation.
  template <typename Call>
  std::vector<absl::Status> InGeneration(int64_t generation, const Call& call) {
    const std::vector<GroupMember> members =
        GroupMembers(ranks_, [](const Rank& rank) -> Transport& { return *rank.transport; });
    std::vector<absl::Status> said(ranks_.size());
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] {
        auto communicator = ranks_[r].transport->Connect(
            {generation, "job", "", members, static_cast<int>(r)}, deadline_);
        said[r] = communicator.ok() ? call(*ranks_[r].policy, communicator->get())
                                    : communicator.status();
      });
    }
    threads.clear();
    return said;
  }

  const absl::Time deadline_ = Clock::Real()->Now() + absl::Seconds(100);
  FakeNetwork network_;
  std::shared_ptr<const engine::Plan> plan_;
  std::vector<Rank> ranks_;
};

TEST_F(ReplicatedStateTest, EveryRankHasAllOfIt) {
  const ReplicatedState& policy = *ranks_[0].policy;
  EXPECT_FALSE(policy.held().has_value());
  EXPECT_TRUE(policy.wanted().empty());
  EXPECT_FALSE(policy.copies_read_peers());
  size_t bytes = 100;
  EXPECT_EQ(policy.Locate(64, &bytes), ranks_[0].state + 64);
  EXPECT_EQ(bytes, 100);
}

TEST_F(ReplicatedStateTest, WhoIsNewCopiesItAndReplicasAreAlike) {
  Step(&ranks_[1], 1);
  const auto agreed = InGeneration(1, [&](StatePolicy& policy, Communicator* communicator) {
    StateAgreement agreement;
    LS_RETURN_IF_ERROR(policy.Agree(communicator, 1, &agreement, deadline_));
    EXPECT_EQ(agreement.holders.front(), 1);
    EXPECT_EQ(agreement.copied, communicator->rank() == 0);
    return policy.CheckReplicas(communicator, 1, deadline_);
  });
  for (const absl::Status& status : agreed) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(ranks_[0].executor->committed_step(), 1);
}

TEST_F(ReplicatedStateTest, ReplicasThatDifferAreFound) {
  Step(&ranks_[0], 1);
  const auto said = InGeneration(1, [&](StatePolicy& policy, Communicator* communicator) {
    return policy.CheckReplicas(communicator, 1, deadline_);
  });
  for (const absl::Status& status : said) EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

}  // namespace
}  // namespace lockstep::worker
