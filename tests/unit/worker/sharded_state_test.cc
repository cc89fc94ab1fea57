// SPDX-License-Identifier: Apache-2.0
// Ranks with parts of the moments, through steps, joins and departures: what they have is always,
// bit for bit, what a worker that holds everything has.
#include "worker/state/sharded_state.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/sharded_state_fixture.h"

namespace lockstep::worker {
namespace {

TEST_P(ShardedStateTest, AnyNumberOfRanksMakesTheSameSteps) {
  for (const int world : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(world);
    members_.clear();
    for (int i = 0; i < world; ++i) Add();
    Generation(0, [&](Member* member, Communicator* communicator) {
      EXPECT_EQ(member->sharded->all_held(), world < 3);
      Train(member, communicator, 4);
      ExpectState(*member, communicator, 4);
    });
    const bool less = BytesHeld(*members_[0]) < plan_->state_bytes() * 9 / 10;
    EXPECT_EQ(less, world > 2);
  }
}

TEST_P(ShardedStateTest, RanksComeAndGoBetweenSteps) {
  for (int i = 0; i < 3; ++i) Add();
  const auto one_step = [&](int64_t start) {
    Generation(start, [&, start](Member* member, Communicator* communicator) {
      ExpectState(*member, communicator, start);
      Train(member, communicator, 1);
      ExpectState(*member, communicator, start + 1);
    });
  };
  one_step(0);
  Add();
  Add();
  one_step(1);  // 5
  Kill(0);
  one_step(2);  // 4
  Kill(3);
  Add();
  one_step(3);  // 4, one of them new
  Kill(1);
  one_step(4);  // 3
  Kill(1);
  one_step(5);  // 2: everybody has everything
  Kill(0);
  one_step(6);  // 1
  for (int i = 0; i < 3; ++i) Add();
  one_step(7);  // 4
}

// A death before all have their part of the reduction: nobody has begun the step, all do it again.
TEST_P(ShardedStateTest, AStepWhoseSumsAreNotSharedIsDoneAgain) {
  for (const int dead : {0, 3}) {
    members_.clear();
    for (int i = 0; i < 4; ++i) Add();
    Generation(0, [&](Member* member, Communicator* communicator) {
      Train(member, communicator, 2);
      DyingCommunicator mortal(communicator, communicator->rank() == dead ? 0 : -2);
      EXPECT_EQ(Reduce(member, &mortal).ok(), GetParam() == Mode::kInPlace);
    });
    Kill(static_cast<size_t>(dead));
    Generation(2, [&](Member* member, Communicator* communicator) {
      ExpectState(*member, communicator, 2);
      Train(member, communicator, 2);
      ExpectState(*member, communicator, 4);
    });
  }
}

TEST_P(ShardedStateTest, AMomentThatChangedIsFound) {
  for (int i = 0; i < 3; ++i) Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 1);
    // In a moment that two ranks have: nobody can say who is right.
    if (communicator->rank() == 1) {
      member->executor->BeginLoad();
      member->state[member->sharded->present()[1].begin] ^= 1;
      member->executor->EndLoad();
    }
    const absl::Status checked = member->sharded->CheckReplicas(communicator, 1, Deadline());
    EXPECT_FALSE(checked.ok());
    if (communicator->rank() == 1) {
      EXPECT_EQ(checked.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(checked.message()), ::testing::HasSubstr("no majority"));
    }
  });
}

// Batch statistics that fill more than one block of 64 Ki elements.
class ManyStatisticsTest : public ShardedStateTest {
 protected:
  static engine::TrainSpec WithStatistics(bool sharded) {
    engine::TrainSpec spec = ShardedSpec(sharded);
    spec.model =
        engine::CnnSpec{.channels = {33000}, .kernel = 1, .batch_norm = true, .hidden = {}};
    spec.input = engine::ClassificationInput({1, 2, 2}, 10);
    return spec;
  }
  ManyStatisticsTest() : ShardedStateTest(WithStatistics) {}
};

TEST_P(ManyStatisticsTest, AllRanksGetAllOfThem) {
  ASSERT_GT(plan_->gradient_count() - plan_->TailBegin(), 65536);
  for (int i = 0; i < 4; ++i) Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 2);
    ExpectState(*member, communicator, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ManyStatisticsTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return Name(info.param); });
INSTANTIATE_TEST_SUITE_P(All, ShardedStateTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep::worker
