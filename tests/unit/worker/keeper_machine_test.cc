// SPDX-License-Identifier: Apache-2.0
#include "worker/command/keeper_machine.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::worker {
namespace {

using Seen = KeeperMachine::Seen;
using Actions = KeeperMachine::Actions;

constexpr ProcessEnd kGood = {};

class KeeperMachineTest : public ::testing::Test {
 protected:
  KeeperMachineTest() { EXPECT_TRUE(machine_.Begin(now_).ready); }

  Actions Step(const Seen& seen, absl::Duration later = absl::ZeroDuration()) {
    now_ += later;
    return machine_.Step(seen, now_);
  }
  void Enter(int64_t generation) { EXPECT_TRUE(Step({.generation = generation}).start); }

  absl::Time now_ = absl::UnixEpoch();
  KeeperMachine machine_{
      {.grace = absl::Seconds(10), .lease = absl::Seconds(30), .lease_notice = absl::Seconds(3)}};
};

TEST_F(KeeperMachineTest, ReportsACommandThatSucceedsAndLeavesWhenTold) {
  Enter(1);
  const Actions ended = Step({.ended = kGood});
  EXPECT_TRUE(ended.finished);
  EXPECT_FALSE(machine_.drained());
  EXPECT_FALSE(Step({}).leave.has_value());
  const Actions told = Step({.exit = 0});
  ASSERT_TRUE(told.leave.has_value());
  EXPECT_EQ(told.leave->code, 0);
}

TEST_F(KeeperMachineTest, EndsAsTheCommandFails) {
  Enter(1);
  const Actions actions = Step({.ended = ProcessEnd{.code = 7}});
  ASSERT_TRUE(actions.leave.has_value());
  EXPECT_TRUE(actions.failed);
  EXPECT_EQ(actions.leave->code, 7);
  EXPECT_FALSE(actions.finished);
}

TEST_F(KeeperMachineTest, EndsTheCommandWithItsGenerationAndIsReadyForTheNext) {
  Enter(1);
  Actions actions = Step({.aborted = true});
  EXPECT_TRUE(actions.terminate);
  EXPECT_EQ(actions.next, now_ + absl::Seconds(10));
  EXPECT_FALSE(Step({.aborted = true}, absl::Seconds(9)).kill);
  EXPECT_TRUE(Step({.aborted = true}, absl::Seconds(1)).kill);
  EXPECT_FALSE(Step({.aborted = true}, absl::Seconds(1)).kill) << "once";
  actions = Step({.aborted = true, .ended = ProcessEnd{.signal = SIGKILL}});
  EXPECT_TRUE(actions.ready);
  EXPECT_FALSE(actions.leave.has_value());
  Enter(2);
  EXPECT_EQ(machine_.generation(), 2);
}

TEST_F(KeeperMachineTest, OneThatFailsWithItsPeersIsReadyAgain) {
  Enter(1);
  const Actions actions = Step({.aborted = true, .ended = ProcessEnd{.code = 1}});
  EXPECT_TRUE(actions.ready);
  EXPECT_FALSE(actions.failed);
}

TEST_F(KeeperMachineTest, ASuccessIsDoneAgainWhenAnotherRankFails) {
  Enter(1);
  Step({.ended = kGood});
  EXPECT_TRUE(Step({.aborted = true}).ready);
  Enter(2);
}

TEST_F(KeeperMachineTest, ADrainedCommandIsFinishedHoweverItEnds) {
  Enter(1);
  EXPECT_TRUE(Step({.drain = true}).terminate);
  EXPECT_FALSE(Step({.drain = true}).terminate);
  EXPECT_TRUE(Step({.drain = true, .ended = ProcessEnd{.signal = SIGTERM}}).finished);
  EXPECT_TRUE(machine_.drained());
  EXPECT_FALSE(Step({.aborted = true}).ready) << "it does not begin again";
}

TEST_F(KeeperMachineTest, WithoutACoordinatorTheCommandIsAskedToEndAndKilledWithTheLease) {
  Enter(1);
  Actions actions = Step({.connected = false}, absl::Seconds(26));
  EXPECT_FALSE(actions.terminate || actions.kill);
  EXPECT_EQ(actions.next, now_ + absl::Seconds(1));
  Step({.connected = true});
  EXPECT_FALSE(Step({.connected = false}, absl::Seconds(26)).terminate) << "it was there meanwhile";
  actions = Step({.connected = false}, absl::Seconds(1));
  EXPECT_TRUE(actions.terminate);
  EXPECT_FALSE(actions.kill);
  EXPECT_EQ(actions.next, now_ + absl::Seconds(3));
  actions = Step({.connected = false}, absl::Seconds(2));
  EXPECT_FALSE(actions.terminate || actions.kill);
  EXPECT_TRUE(Step({.connected = false}, absl::Seconds(1)).kill);
  EXPECT_TRUE(Step({.connected = false, .ended = ProcessEnd{.signal = SIGKILL}}).ready);
}

// Whoever looks late, as after a suspension, has no time left to ask.
TEST_F(KeeperMachineTest, ALeaseThatIsOverAtOnceKillsTheCommand) {
  Enter(1);
  const Actions actions = Step({.connected = false}, absl::Seconds(31));
  EXPECT_TRUE(actions.kill);
  EXPECT_FALSE(actions.terminate);
}

TEST_F(KeeperMachineTest, ACommandThatWasAskedToEndEndsAlsoWhenTheCoordinatorIsBack) {
  Enter(1);
  EXPECT_TRUE(Step({.connected = false}, absl::Seconds(27)).terminate);
  EXPECT_FALSE(Step({.connected = true}, absl::Seconds(1)).kill);
  EXPECT_TRUE(Step({.connected = true}, absl::Seconds(9)).kill) << "after its grace";
  const Actions ended = Step({.connected = true, .ended = ProcessEnd{.signal = SIGTERM}});
  EXPECT_TRUE(ended.ready);
  EXPECT_FALSE(ended.failed);
}

TEST_F(KeeperMachineTest, TheLeaseCutsAGraceShort) {
  Enter(1);
  Step({.drain = true, .connected = false}, absl::Seconds(29));
  EXPECT_TRUE(Step({.drain = true, .connected = false}, absl::Seconds(1)).kill);
}

TEST_F(KeeperMachineTest, LeavesWhenItsAgentEndsItOrIsGone) {
  Enter(1);
  EXPECT_TRUE(Step({.stop = true}).terminate);
  EXPECT_EQ(Step({.stop = true, .ended = ProcessEnd{.signal = SIGTERM}}).leave->code, 0);
  KeeperMachine other({});
  other.Begin(now_);
  other.Step({.generation = 1}, now_);
  const Actions actions = other.Step({.orphaned = true}, now_);
  EXPECT_TRUE(actions.kill);
  EXPECT_TRUE(actions.leave.has_value());
}

TEST_F(KeeperMachineTest, AGenerationThatIsOverIsAnsweredByTheNextReady) {
  const Actions actions = Step({.missed = 3});
  EXPECT_TRUE(actions.ready);
  EXPECT_EQ(machine_.generation(), 3);
}

}  // namespace
}  // namespace lockstep::worker
