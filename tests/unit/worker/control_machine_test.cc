// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_machine.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class ControlMachineTest : public ::testing::Test {
 protected:
  static WorkerBootstrap Bootstrap() {
    WorkerBootstrap bootstrap;
    bootstrap.mutable_assignment()->set_job_id("job");
    bootstrap.mutable_assignment()->set_incarnation("life");
    bootstrap.mutable_assignment()->set_slot(3);
    bootstrap.set_node_id("node");
    bootstrap.set_host("here");
    bootstrap.set_token("secret");
    return bootstrap;
  }
  static WorkerCommand From(const std::string& cluster, int64_t epoch) {
    WorkerCommand command;
    command.set_cluster_id(cluster);
    command.set_epoch(epoch);
    return command;
  }
  ControlMachine::Effects Begin(int64_t generation, WorkerCommand command = {}) {
    command.mutable_generation()->set_generation(generation);
    command.mutable_generation()->add_members();
    return machine_.Command(command);
  }
  ControlMachine::Effects Abort(int64_t generation, const std::string& reason,
                                WorkerCommand command = {}) {
    command.mutable_abort()->set_generation(generation);
    command.mutable_abort()->set_reason(reason);
    return machine_.Command(command);
  }
  ControlMachine::Effects Leave(const std::string& reason) {
    WorkerCommand command;
    command.mutable_exit()->set_reason(reason);
    return machine_.Command(command);
  }
  static WorkerReady ReadyAfter(int64_t step) {
    WorkerReady ready;
    ready.set_committed_step(step);
    return ready;
  }

  ControlMachine machine_{Bootstrap(), 77};
};

TEST_F(ControlMachineTest, HelloSaysWho) {
  const WorkerMessage message = machine_.Hello();
  EXPECT_EQ(message.job_id(), "job");
  EXPECT_EQ(message.incarnation(), "life");
  EXPECT_EQ(message.hello().pid(), 77);
  EXPECT_EQ(message.hello().slot(), 3);
  EXPECT_EQ(message.hello().node_id(), "node");
  EXPECT_EQ(message.hello().cluster_id(), "");
}

TEST_F(ControlMachineTest, AGenerationIsInTheMailboxUntilItIsTaken) {
  EXPECT_FALSE(machine_.HasGeneration(0));
  Begin(4);
  Begin(3);  // an old one, late
  EXPECT_TRUE(machine_.HasGeneration(3));
  EXPECT_FALSE(machine_.HasGeneration(4));
  EXPECT_EQ(machine_.TakeGeneration(3).generation(), 4);
}

TEST_F(ControlMachineTest, AllWhomItLostAreSaidAgainBeforeItIsReadyUntilThereIsAnotherGeneration) {
  machine_.Connected();
  PeerLost lost;
  lost.set_generation(1);
  for (const int rank : {2, 4}) {
    lost.set_rank(rank);
    const std::vector<WorkerMessage> said = machine_.LostPeer(lost).messages;
    ASSERT_THAT(said, SizeIs(1));
    EXPECT_EQ(said[0].peer_lost().rank(), rank);
  }
  machine_.Ready(ReadyAfter(7));
  const std::vector<WorkerMessage> again = machine_.Connected().messages;
  ASSERT_THAT(again, SizeIs(3));
  EXPECT_EQ(again[0].peer_lost().rank(), 2);
  EXPECT_EQ(again[1].peer_lost().rank(), 4);
  EXPECT_TRUE(again[2].has_ready());
  Begin(2);
  machine_.TakeGeneration(1);
  EXPECT_THAT(machine_.Connected().messages, IsEmpty());
}

TEST_F(ControlMachineTest, ACheckpointIsOfferedUntilThereIsAVerdictOnIt) {
  CheckpointOffer offer;
  offer.mutable_mark()->set_generation(2);
  offer.mutable_mark()->set_step(40);
  machine_.Connected();
  EXPECT_THAT(machine_.Offer(offer).messages, SizeIs(1));
  WorkerCommand command;
  command.mutable_checkpoint()->mutable_mark()->set_generation(2);
  command.mutable_checkpoint()->mutable_mark()->set_step(20);  // an old answer
  machine_.Command(command);
  EXPECT_EQ(machine_.verdict(), nullptr);
  const auto again = machine_.Connected().messages;
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].checkpoint().mark().step(), 40);
  command.mutable_checkpoint()->mutable_mark()->set_step(40);
  command.mutable_checkpoint()->set_refused("a newer one");
  machine_.Command(command);
  ASSERT_NE(machine_.verdict(), nullptr);
  EXPECT_EQ(machine_.verdict()->refused(), "a newer one");
  EXPECT_THAT(machine_.Connected().messages, IsEmpty());
  machine_.Offer(offer);
  EXPECT_EQ(machine_.verdict(), nullptr);
}

// Whoever hears of the end says from where the job can go on.
TEST_F(ControlMachineTest, TheLastCheckpointIsSaidBeforeTheEnd) {
  machine_.Connected();
  machine_.Offer(CheckpointOffer());
  machine_.Finished(WorkerFinished());
  const auto again = machine_.Connected().messages;
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_TRUE(again[0].has_checkpoint());
  EXPECT_TRUE(again[1].has_finished());
}

TEST_F(ControlMachineTest, OneThatEndedBeforeItWasEnteredHasNoMembers) {
  Begin(4);
  Abort(4, "rank 1 died");
  const Generation generation = machine_.TakeGeneration(3);
  EXPECT_EQ(generation.generation(), 4);
  EXPECT_THAT(generation.members(), IsEmpty());
  EXPECT_FALSE(machine_.HasGeneration(4));
  Begin(5);
  EXPECT_THAT(machine_.TakeGeneration(4).members(), SizeIs(1));
}

TEST_F(ControlMachineTest, TheWatchedGenerationEndsWithItsReason) {
  Begin(4);
  EXPECT_FALSE(machine_.Watch(4).abort.has_value());
  EXPECT_FALSE(Abort(3, "late").abort.has_value());
  EXPECT_EQ(Abort(4, "rank 1 died").abort, "rank 1 died");
  EXPECT_TRUE(machine_.HasEnded(4));
  machine_.Unwatch();
  EXPECT_FALSE(Abort(5, "again").abort.has_value());
  EXPECT_EQ(machine_.Watch(5).abort, "again") << "it had ended before it was watched";
}

TEST_F(ControlMachineTest, ALostConnectionIsKnownUntilTheNextWatch) {
  machine_.Watch(4);
  EXPECT_FALSE(machine_.heard()) << "it was gone when the generation was taken from the mailbox";
  machine_.Connected();
  EXPECT_FALSE(machine_.heard());
  machine_.Watch(5);
  EXPECT_TRUE(machine_.heard());
  machine_.Disconnected();
  machine_.Connected();
  EXPECT_FALSE(machine_.heard());
}

TEST_F(ControlMachineTest, ANewerGenerationEndsTheWatchedOne) {
  machine_.Watch(4);
  EXPECT_EQ(Begin(6).abort, "a newer generation began");
  EXPECT_TRUE(machine_.HasEnded(5));
  EXPECT_FALSE(machine_.HasEnded(6));
}

TEST_F(ControlMachineTest, ExitEndsWhateverIsWatchedAndTheFirstReasonStays) {
  EXPECT_FALSE(Leave("the job is over").abort.has_value());
  EXPECT_EQ(machine_.Watch(9).abort, "the job is over");
  EXPECT_EQ(Leave("not wanted").abort, "the job is over");
  EXPECT_EQ(machine_.exit()->reason(), "the job is over");
}

TEST_F(ControlMachineTest, WithoutACoordinatorNobodyGoesOnConnecting) {
  machine_.Watch(4);
  EXPECT_FALSE(machine_.LoseCoordinator().abort.has_value()) << "it stops after a step";
  EXPECT_TRUE(machine_.Watch(5, /*connecting=*/true).abort.has_value());
  ControlMachine other({}, 7);
  other.Watch(4, /*connecting=*/true);
  EXPECT_EQ(other.LoseCoordinator().abort, "the coordinator is gone for good");
  other.Watch(4);
  EXPECT_FALSE(other.LoseCoordinator().abort.has_value());
}

TEST_F(ControlMachineTest, TheStandingMessageIsSaidAgainWhileItIsTrue) {
  EXPECT_THAT(machine_.Connected().messages, IsEmpty());
  EXPECT_THAT(machine_.Ready(ReadyAfter(7)).messages, SizeIs(1));
  auto again = machine_.Connected().messages;
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].ready().committed_step(), 7);
  Begin(1);
  machine_.TakeGeneration(0);
  EXPECT_THAT(machine_.Connected().messages, IsEmpty()) << "it has entered a generation";
  WorkerFinished finished;
  finished.set_steps(10);
  EXPECT_THAT(machine_.Finished(finished).messages, SizeIs(1));
  again = machine_.Connected().messages;
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].finished().steps(), 10);
}

TEST_F(ControlMachineTest, WhatWasSaidBeforeTheFirstConnectionIsNotSaidTwice) {
  EXPECT_THAT(machine_.Ready(ReadyAfter(0)).messages, SizeIs(1));
  EXPECT_THAT(machine_.Connected().messages, IsEmpty());
}

TEST_F(ControlMachineTest, DrainAndRegroupAreRemembered) {
  WorkerCommand command;
  command.mutable_drain()->set_reason("maintenance");
  machine_.Command(command);
  command.mutable_regroup()->set_generation(5);
  machine_.Command(command);
  EXPECT_TRUE(machine_.drain());
  EXPECT_EQ(machine_.regroup(), 5);
}

// Whoever asks members of generation 7 to leave generation 5 has a journal that does not know 7.
TEST_F(ControlMachineTest, ARegroupOfAnEarlierGenerationIsOfThisOne) {
  machine_.Watch(7);
  WorkerCommand command;
  command.mutable_regroup()->set_generation(5);
  machine_.Command(command);
  EXPECT_EQ(machine_.regroup(), 7);
}

TEST_F(ControlMachineTest, AnOlderCoordinatorOfTheClusterIsNotObeyed) {
  Begin(1, From("cluster", 3));
  machine_.Watch(1);
  const auto old = Abort(1, "from the past", From("cluster", 2));
  EXPECT_FALSE(old.abort.has_value());
  EXPECT_EQ(old.refused, "a coordinator of epoch 2 is not obeyed: there is one of epoch 3");
  EXPECT_FALSE(machine_.HasEnded(1));
  EXPECT_EQ(machine_.Hello().hello().epoch(), 3);
  EXPECT_EQ(machine_.Hello().hello().cluster_id(), "cluster");
  EXPECT_EQ(Abort(1, "now", From("cluster", 3)).abort, "now");
}

TEST_F(ControlMachineTest, ALaterOneIsObeyedAndOneOfAnotherClusterIsNot) {
  Begin(1, From("cluster", 3));
  EXPECT_EQ(Begin(2, From("cluster", 4)).refused, "");
  EXPECT_EQ(Begin(3, From("another", 5)).refused,
            "the coordinator of cluster another is not obeyed: this worker belongs to cluster");
  EXPECT_EQ(machine_.Hello().hello().epoch(), 4);
  EXPECT_TRUE(machine_.HasGeneration(1));
  EXPECT_FALSE(machine_.HasGeneration(2));
}

// Of an agent that does not say whose the worker is, the first coordinator is obeyed, and one that
// does not say whose it is.
TEST_F(ControlMachineTest, ACommandWithoutClusterIsObeyedWhereTheAgentNamesNone) {
  Begin(1, From("cluster", 3));
  EXPECT_EQ(Begin(2).refused, "");
  EXPECT_EQ(machine_.Hello().hello().epoch(), 3);
}

TEST_F(ControlMachineTest, TheAgentSaysWhoseTheWorkerIs) {
  WorkerBootstrap bootstrap = Bootstrap();
  bootstrap.set_cluster_id("cluster");
  bootstrap.set_epoch(3);
  ControlMachine machine(bootstrap, 77);
  EXPECT_EQ(machine.Hello().hello().cluster_id(), "cluster");
  EXPECT_EQ(machine.Hello().hello().epoch(), 3);
  const auto begin = [&machine](WorkerCommand command) {
    command.mutable_generation()->set_generation(1);
    command.mutable_generation()->add_members();
    return machine.Command(command).refused;
  };
  EXPECT_EQ(begin({}),
            "a coordinator that does not name its cluster is not obeyed: this worker belongs to "
            "cluster");
  EXPECT_EQ(begin(From("another", 9)),
            "the coordinator of cluster another is not obeyed: this worker belongs to cluster");
  EXPECT_EQ(begin(From("cluster", 2)),
            "a coordinator of epoch 2 is not obeyed: there is one of epoch 3");
  EXPECT_FALSE(machine.HasGeneration(0));
  EXPECT_EQ(begin(From("cluster", 3)), "");
  EXPECT_TRUE(machine.HasGeneration(0));
}

}  // namespace
}  // namespace lockstep::worker
