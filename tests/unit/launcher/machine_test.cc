// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/machine.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/launcher/agent_driver.h"

namespace lockstep::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Without(std::vector<std::string> lines, const std::string& start) {
  std::erase_if(lines, [&](const std::string& line) { return absl::StartsWith(line, start); });
  return lines;
}

TEST(AgentMachineTest, AWorkersLife) {
  Driver agent;
  agent.Do(agent_event::Connected{});
  EXPECT_THAT(agent.Want("c", 1, {"j.0"}), ElementsAre("up", "start j.0"));
  EXPECT_THAT(agent.Do(agent_event::Started{"j.0", 12}), ElementsAre("said started j.0"));
  EXPECT_EQ(agent.machine.Hello().running(0).pid(), 12);
  EXPECT_EQ(agent.machine.Hello().cluster_id(), "c");
  EXPECT_EQ(agent.machine.Hello().epoch(), 1);
  EXPECT_THAT(agent.Do(agent_event::Died{"j.0", 7, absl::Milliseconds(3)}),
              ElementsAre("said died j.0"));
  EXPECT_THAT(agent.Exit("j.0"), ElementsAre("said exited j.0"));
  EXPECT_EQ(agent.sent.exited().order(), 7);
  EXPECT_THAT(agent.machine.Hello().running(), IsEmpty());
  // Said again on every connection until it is acknowledged.
  agent.Do(agent_event::Disconnected{"gone"});
  EXPECT_THAT(agent.Do(agent_event::Connected{}), ElementsAre("said exited j.0"));
  EXPECT_THAT(agent.Acknowledge("c", "j.0"), IsEmpty());
  EXPECT_THAT(agent.Want("c", 1, {}), ElementsAre("up", "forget j.0"));
}

TEST(AgentMachineTest, DeathsAreSaidAgainInTheirOrder) {
  Driver agent;
  agent.Do(agent_event::Connected{});
  agent.Want("c", 1, {"j.0", "j.1", "j.2"});
  agent.Do(agent_event::Disconnected{"gone"});
  agent.Do(agent_event::Exited{.incarnation = "j.0", .order = 3});
  agent.Do(agent_event::Died{"j.1", 2, absl::Milliseconds(3)});
  agent.Do(agent_event::Exited{.incarnation = "j.2", .order = 1});
  agent.now += absl::Seconds(2);
  // How the second one ended is not known yet; that it died may have been lost.
  EXPECT_THAT(agent.Do(agent_event::Connected{}),
              ElementsAre("said exited j.2", "said died j.1", "said exited j.0"));
  agent.Do(agent_event::Exited{.incarnation = "j.1"});
  EXPECT_EQ(agent.sent.exited().order(), 2);
  EXPECT_THAT(agent.Do(agent_event::Connected{}),
              ElementsAre("said exited j.2", "said exited j.1", "said exited j.0"));
}

TEST(AgentMachineTest, AStartSaysWhoWantsIt) {
  Driver agent;
  agent.Want("c", 1, {"j.0"});
  EXPECT_EQ(agent.started.cluster, "c");
  EXPECT_EQ(agent.started.epoch.number, 1);
  agent.Want("c", 3, {"j.0", "j.1"});
  EXPECT_EQ(agent.started.epoch.number, 3);
  agent.Want("d", 2, {"k.0"});
  EXPECT_EQ(agent.started.cluster, "d");
  EXPECT_EQ(agent.started.epoch.number, 2);
}

TEST(AgentMachineTest, EndsWhatItsOwnCoordinatorLeavesOut) {
  Driver agent;
  agent.Want("c", 1, {"j.0", "j.1"});
  EXPECT_THAT(agent.Want("c", 2, {"j.1"}),
              ElementsAre(HasSubstr("says nothing of 1 worker"), "term j.0"));
  EXPECT_THAT(agent.Pass(absl::Seconds(9)), IsEmpty());
  EXPECT_THAT(agent.Pass(absl::Seconds(1)), ElementsAre("kill j.0"));
  EXPECT_THAT(agent.Exit("j.0"), ElementsAre("said exited j.0 wanted"));
}

TEST(AgentMachineTest, WhoDiedByItselfWasNotEndedAsWanted) {
  Driver agent;
  agent.Want("c", 1, {"j.0", "j.1"});
  agent.Do(agent_event::Died{"j.0", 1, absl::ZeroDuration()});
  agent.Want("c", 1, {});
  EXPECT_THAT(agent.Exit("j.0"), ElementsAre("said exited j.0"));
  // Its life word said so before anybody had told.
  EXPECT_THAT(agent.Do(agent_event::Exited{.incarnation = "j.1", .died_before_signal = true}),
              ElementsAre("said exited j.1"));
}

TEST(AgentMachineTest, AFailedStartIsAnExit) {
  Driver agent;
  agent.Want("c", 1, {"j.0", "j.1"});
  agent.Exit("j.1");
  EXPECT_THAT(agent.Do(agent_event::StartFailed{.incarnation = "j.0", .why = "no memory"}),
              ElementsAre("said exited j.0"));
  EXPECT_EQ(agent.sent.exited().start_error(), "no memory");
  EXPECT_FALSE(agent.sent.exited().node_unfit());
  EXPECT_GT(agent.sent.exited().order(), 1);  // after all deaths that have an order
  EXPECT_THAT(agent.Want("c", 1, {"j.0"}), IsEmpty());
}

TEST(AgentMachineTest, WhyAStartFailedIsText) {
  Driver agent;
  agent.Want("c", 1, {"j.0"});
  agent.Do(agent_event::StartFailed{.incarnation = "j.0", .why = "no folder c\xe9"});
  EXPECT_EQ(agent.sent.exited().start_error(), "no folder c\\xe9");
}

TEST(AgentMachineTest, AHostThatIsNotWellIsNoWordAgainstTheWorker) {
  Driver agent;
  agent.Want("c", 1, {"j.0"});
  agent.Do(agent_event::StartFailed{
      .incarnation = "j.0", .why = "the disk is full", .node_unfit = true});
  EXPECT_TRUE(agent.sent.exited().node_unfit());
  EXPECT_EQ(agent.sent.exited().start_error(), "the disk is full");
}

TEST(AgentMachineTest, ALowerEpochIsIgnoredAndSaidOnce) {
  Driver agent;
  agent.Want("c", 5, {"j.0"});
  const auto said = agent.Want("c", 4, {});
  ASSERT_THAT(said, ElementsAre(HasSubstr("epoch 4, 5 is known")));
  EXPECT_THAT(agent.Want("c", 4, {"k.0"}), IsEmpty());
  EXPECT_THAT(agent.Acknowledge("c", "j.0"), ElementsAre(HasSubstr("epoch 1")));
  EXPECT_THAT(agent.Want("c", 5, {}), ElementsAre("term j.0"));
}

TEST(AgentMachineTest, FilesGoToNoOlderCoordinator) {
  Driver agent;
  agent.Want("c", 5, {"j.0"});
  const auto ask = [&](int64_t epoch) {
    agent_event::Command event;
    event.command.set_cluster_id("c");
    event.command.set_epoch(epoch);
    event.command.mutable_send_files()->set_job_id("j");
    return agent.Do(event);
  };
  EXPECT_THAT(ask(5), ElementsAre("files of j"));
  EXPECT_THAT(ask(4), ElementsAre(HasSubstr("epoch 4, 5 is known")));
}

TEST(AgentMachineTest, ARefusalEndsNothingAndIsTriedAgain) {
  Driver agent({.orphan_grace = kGrace, .taken_advice = "remove /state/node-id"});
  agent.Do(agent_event::Connected{});
  agent.Want("c", 1, {"j.0", "j.1"});
  const auto lines = agent.Reject(Rejected::VERSION, "the agent speaks protocol 1");
  EXPECT_THAT(lines, ElementsAre("close", HasSubstr("speaks protocol 1 (2 workers of this node go "
                                                    "on; tried again every 1s to 30s)")));
  EXPECT_THAT(agent.Pass(absl::Milliseconds(999)), IsEmpty());
  EXPECT_THAT(agent.Pass(absl::Milliseconds(1)), ElementsAre("open"));
  // It says the same again: nobody hears it twice, and the next try comes later.
  agent.Do(agent_event::Connected{});
  EXPECT_THAT(agent.Reject(Rejected::VERSION, "the agent speaks protocol 1"), ElementsAre("close"));
  EXPECT_THAT(agent.Pass(absl::Milliseconds(1999)), IsEmpty());
  EXPECT_THAT(agent.Pass(absl::Milliseconds(1)), ElementsAre("open"));
  EXPECT_THAT(agent.Reject(Rejected::NODE_TAKEN, "another agent is n-1"),
              ElementsAre("close", HasSubstr("remove /state/node-id")));
  // Hours of it: no worker is touched, and no more than two tries a minute.
  int tries = 0;
  for (int hour = 0; hour < 3; ++hour) {
    for (const std::string& line : agent.Pass(absl::Hours(1))) {
      ASSERT_EQ(line, "open");
      ++tries;
      EXPECT_THAT(agent.Reject(Rejected::NODE_TAKEN, "another agent is n-1"), ElementsAre("close"));
    }
  }
  EXPECT_GT(tries, 0);
  EXPECT_EQ(agent.machine.Hello().running_size(), 2);
  // Taken in again, it obeys.
  EXPECT_THAT(agent.Want("c", 2, {"j.0"}),
              ElementsAre("up", HasSubstr("(j): j.1 is ended now"), "term j.1"));
}

TEST(AgentMachineTest, AnEmptyCoordinatorMakesOrphansThatAreEndedAfterTheGrace) {
  Driver agent;
  agent.Want("old", 3, {"j.0", "j.1"});
  const auto lines = agent.Want("new", 1, {});
  ASSERT_THAT(lines, ElementsAre(HasSubstr("does not know job 'mnist' (j)")));
  EXPECT_THAT(lines[0], HasSubstr("j.0, j.1 go on and are ended at"));
  EXPECT_THAT(lines[0], HasSubstr("(in 5m)"));
  EXPECT_THAT(agent.Want("new", 1, {"k.0"}), ElementsAre("start k.0"));  // not said again
  EXPECT_THAT(agent.Pass(kGrace - absl::Nanoseconds(1)), IsEmpty());
  EXPECT_THAT(Without(agent.Pass(absl::Nanoseconds(1)), "warn"),
              ElementsAre("term j.0", "term j.1"));
  EXPECT_THAT(agent.Pass(absl::Seconds(10)), ElementsAre("kill j.0", "kill j.1"));
  EXPECT_EQ(agent.machine.Hello().running_size(), 3);
}

TEST(AgentMachineTest, TheOldCoordinatorComesBackInTime) {
  Driver agent;
  agent.Want("old", 3, {"j.0", "j.1"});
  agent.Want("new", 1, {});
  agent.Pass(kGrace - absl::Seconds(1));
  // What it knows goes on, what it leaves out is ended at once.
  EXPECT_THAT(Without(agent.Want("old", 4, {"j.0"}), "warn"), ElementsAre("term j.1"));
  EXPECT_THAT(agent.Pass(absl::Hours(1)), ElementsAre("kill j.1"));
  // Its earlier life is not heard any more.
  EXPECT_THAT(Without(agent.Want("old", 3, {}), "warn"), IsEmpty());
  // Orphans anew, with a whole grace.
  EXPECT_THAT(agent.Want("new", 1, {}), ElementsAre(HasSubstr("j.0 go on")));
  EXPECT_THAT(agent.Pass(kGrace - absl::Nanoseconds(1)), IsEmpty());
}

TEST(AgentMachineTest, ANewCoordinatorThatKnowsTheWorkersTakesThemOver) {
  Driver agent;
  agent.Want("old", 3, {"j.0", "j.1"});
  EXPECT_THAT(agent.Want("new", 1, {"j.0", "j.1"}), IsEmpty());
  EXPECT_THAT(agent.Want("new", 1, {"j.0"}), ElementsAre("term j.1"));
}

// As after the restore of a backup: what came after it is unknown.
TEST(AgentMachineTest, SaysWhomItEndsForANewLifeOfTheCoordinatorThatDoesNotKnowThem) {
  Driver agent;
  agent.Want("c", 3, {"j.0", "j.1", "k.0", "l.0"});
  const auto lines = agent.Want("c", 1004, {"k.0"}, {"l.0"});
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], HasSubstr("warn the coordinator began anew (epoch 1004, before it 3)"));
  EXPECT_THAT(lines[0], HasSubstr("of job 'mnist' (j): j.0, j.1 are ended now"));
  EXPECT_THAT(Without(lines, "warn"), UnorderedElementsAre("term j.0", "term j.1", "kill l.0"));
  // What the life that knows it leaves out is its wish.
  EXPECT_THAT(agent.Want("c", 1004, {}), ElementsAre("term k.0"));
}

TEST(AgentMachineTest, SaysWhichAdoptedWorkersItEndsForANewLifeOfTheCoordinator) {
  Driver agent;
  agent.Adopt("c", 3, "j.0");
  EXPECT_THAT(agent.Want("c", 1004, {}),
              ElementsAre("up", HasSubstr("j.0 is ended now"), "term j.0"));
}

TEST(AgentMachineTest, WorkersThatAreNamedToBeKilledAreNoOrphans) {
  Driver agent;
  agent.Want("old", 3, {"j.0", "j.1"});
  EXPECT_THAT(Without(agent.Want("new", 1, {}, {"j.0"}), "warn"), ElementsAre("kill j.0"));
}

// The wish to start it never got through, and the coordinator counts it as running until it hears
// of its end.
TEST(AgentMachineTest, WhoIsToBeKilledAndWasNeverStartedIsSaidToBeGone) {
  Driver driver;
  driver.Want("a", 1, {"j.0.1"});
  EXPECT_THAT(driver.Want("a", 1, {"j.0.1"}, {"j.1.1"}), ElementsAre("said exited j.1.1 wanted"));
  EXPECT_EQ(driver.sent.exited().job_id(), "j");
  EXPECT_THAT(driver.Want("a", 1, {"j.0.1"}), IsEmpty());
}

TEST(AgentMachineTest, AnOrphansExitWaitsForItsOwnCoordinator) {
  Driver agent;
  agent.Want("old", 3, {"j.0"});
  agent.Want("new", 1, {});
  agent.Exit("j.0");
  agent.Acknowledge("new", "j.0");  // which does not know it
  EXPECT_THAT(agent.Pass(absl::Hours(1)), IsEmpty());
  EXPECT_THAT(agent.Do(agent_event::Connected{}), ElementsAre("said exited j.0"));
  // Never started twice under one name.
  EXPECT_THAT(Without(agent.Want("old", 4, {"j.0"}), "up"), IsEmpty());
}

TEST(AgentMachineTest, RecordsOfOtherClustersAreBounded) {
  Driver agent;
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back(absl::StrCat("j.", i));
  agent.Want("old", 1, names);
  for (const std::string& name : names) agent.Exit(name);
  EXPECT_EQ(agent.machine.size(), 300u);
  agent.Want("new", 1, {});
  EXPECT_EQ(agent.machine.size(), 256u);
}

TEST(AgentMachineTest, MoreStartsThanAnyTableHolds) {
  Driver agent;
  for (int i = 0; i < 3 * 4096; ++i) {
    const std::string name = absl::StrCat("j.", i);
    ASSERT_THAT(Without(agent.Want("c", 1, {name}), "up"), Contains(absl::StrCat("start ", name)));
    agent.Exit(name);
    agent.Acknowledge("c", name);
  }
  EXPECT_EQ(agent.machine.size(), 1u);
}

TEST(AgentMachineTest, StopEndsAllAndStartsNothing) {
  Driver agent;
  agent.Want("old", 1, {"j.0", "j.1"});
  agent.Want("new", 1, {});
  EXPECT_THAT(agent.Do(agent_event::Stop{}), ElementsAre("said stopping", "term j.0", "term j.1"));
  EXPECT_THAT(agent.Want("new", 1, {"k.0"}), IsEmpty());
  EXPECT_FALSE(agent.machine.stopped());
  EXPECT_THAT(agent.Do(agent_event::Stop{.kill = true}), ElementsAre("kill j.0", "kill j.1"));
  agent.Exit("j.0");
  agent.Exit("j.1");
  EXPECT_TRUE(agent.machine.stopped());
}

TEST(AgentMachineTest, WhoIsStillWantedIsKeptForTheLeaveGrace) {
  Driver agent({.orphan_grace = kGrace, .leave_grace = absl::Seconds(20)});
  agent.Do(agent_event::Connected{});
  agent.Want("c", 1, {"j.0", "j.1", "k.0"});
  EXPECT_THAT(agent.Do(agent_event::Stop{}), ElementsAre("said stopping"));
  EXPECT_EQ(agent.sent.stopping().grace().seconds(), 20);
  // It starts nothing, and ends who has nothing to wait for.
  EXPECT_THAT(agent.Want("c", 1, {"j.0", "j.1", "j.2"}), ElementsAre("term k.0"));
  agent.Pass(absl::Seconds(15));
  // Whoever connects meanwhile hears how long is left.
  EXPECT_THAT(agent.Do(agent_event::Connected{}), ElementsAre("said stopping"));
  EXPECT_EQ(agent.sent.stopping().grace().seconds(), 5);
  EXPECT_THAT(agent.Want("c", 1, {"j.0"}), ElementsAre("term j.1"));
  EXPECT_THAT(agent.Pass(absl::Seconds(4)), IsEmpty());
  EXPECT_THAT(agent.Pass(absl::Seconds(2)), Contains("term j.0"));
  EXPECT_THAT(agent.Want("c", 1, {"j.0"}), IsEmpty());
}

TEST(AgentMachineTest, NobodyIsKeptWhoNobodyAsksForOrAfterASecondSignal) {
  Driver away({.orphan_grace = kGrace, .leave_grace = absl::Seconds(20)});
  away.Do(agent_event::Connected{});
  away.Want("c", 1, {"j.0"});
  away.Do(agent_event::Disconnected{"gone"});
  EXPECT_THAT(away.Do(agent_event::Stop{}), ElementsAre("said stopping", "term j.0"));

  Driver hurried({.orphan_grace = kGrace, .leave_grace = absl::Seconds(20)});
  hurried.Do(agent_event::Connected{});
  hurried.Want("c", 1, {"j.0"});
  EXPECT_THAT(hurried.Do(agent_event::Stop{}), ElementsAre("said stopping"));
  EXPECT_THAT(hurried.Do(agent_event::Stop{.kill = true}), ElementsAre("kill j.0"));
}

TEST(AgentMachineTest, WorkersHaveTheTimeToSaveWhenNoCoordinatorComesBack) {
  Driver agent;
  agent.Want("c", 1, {"j.0", "j.1"});
  EXPECT_THAT(agent.Do(agent_event::Stop{.save = true}),
              ElementsAre("said stopping", "save j.0", "save j.1"));
  EXPECT_THAT(agent.Want("c", 1, {"j.0", "j.1", "k.0"}), IsEmpty());
  EXPECT_THAT(agent.Do(agent_event::Stop{}), IsEmpty()) << "they are leaving";
  agent.Exit("j.0");
  EXPECT_THAT(Without(agent.Pass(absl::Minutes(9)), "heartbeat"), IsEmpty());
  EXPECT_THAT(Without(agent.Pass(absl::Minutes(2)), "heartbeat"), ElementsAre("kill j.1"));
  agent.Exit("j.1");
  EXPECT_TRUE(agent.machine.stopped());
}

TEST(AgentMachineTest, HeartbeatsGoOutWhileItIsConnected) {
  Driver agent;
  const auto beats = [&](absl::Duration duration) {
    int count = 0;
    for (const absl::Time end = agent.now + duration; agent.now < end;) {
      agent.now = std::min(end, agent.next);
      const auto output = agent.machine.Step(agent_event::Tick{}, agent.now);
      agent.next = output.next;
      for (const AgentAction& action : output.actions) {
        count += std::holds_alternative<agent_action::Heartbeat>(action) ? 1 : 0;
      }
    }
    return count;
  };
  agent.Do(agent_event::Tick{});
  EXPECT_EQ(beats(absl::Seconds(5)), 0);
  agent.Do(agent_event::Connected{});
  EXPECT_EQ(beats(absl::Seconds(5)), 5);
  agent.Do(agent_event::Disconnected{"gone"});
  EXPECT_EQ(beats(absl::Seconds(5)), 0);
}

TEST(AgentMachineTest, TheUserHearsOfTheConnectionOnce) {
  Driver agent;
  EXPECT_THAT(agent.Do(agent_event::Disconnected{"nobody is there"}),
              ElementsAre("down: nobody is there"));
  EXPECT_THAT(agent.Do(agent_event::Disconnected{"nobody is there"}), IsEmpty());
  agent.Do(agent_event::Connected{});
  EXPECT_THAT(agent.Want("c", 1, {}), ElementsAre("up"));
  EXPECT_THAT(agent.Want("c", 1, {}), IsEmpty());
  EXPECT_THAT(agent.Do(agent_event::Disconnected{"nobody is there"}),
              ElementsAre("down: nobody is there"));
}

TEST(AgentMachineTest, AdoptsWhatTheAgentBeforeHasStarted) {
  Driver agent;
  EXPECT_THAT(agent.Adopt("c", 3, "j.0.1"), IsEmpty());
  EXPECT_THAT(agent.Adopt("c", 3, "j.1.1"), IsEmpty());
  AgentHello hello = agent.machine.Hello();
  ASSERT_EQ(hello.running_size(), 2);
  EXPECT_EQ(hello.running(0).worker_incarnation(), "j.0.1");
  EXPECT_EQ(hello.running(0).pid(), 77);
  EXPECT_EQ(hello.cluster_id(), "c");
  EXPECT_EQ(hello.epoch(), 3);
  // One ends before the coordinator is there: it is told how, and not that it never ran.
  EXPECT_THAT(agent.Exit("j.1.1"), ElementsAre("said exited j.1.1"));
  hello = agent.machine.Hello();
  EXPECT_EQ(hello.running_size(), 1);
  EXPECT_THAT(hello.ended(), ElementsAre("j.1.1"));
  EXPECT_THAT(agent.Do(agent_event::Connected{}), Contains("said exited j.1.1"));
  // An older life of their coordinator is not obeyed; what theirs leaves out is ended.
  EXPECT_THAT(agent.Want("c", 2, {}), ElementsAre(HasSubstr("an older life")));
  EXPECT_THAT(agent.Want("c", 3, {"j.0.1"}), ElementsAre("up"));
  EXPECT_THAT(agent.Want("c", 3, {}), ElementsAre("term j.0.1"));
  EXPECT_THAT(agent.Do(agent_event::Died{"j.0.1", 8, absl::ZeroDuration()}),
              ElementsAre("said died j.0.1 wanted"));
}

TEST(AgentMachineTest, AdoptedWorkersOfAnotherClusterAreOrphans) {
  Driver agent;
  agent.Adopt("c", 3, "j.0.1");
  agent.Do(agent_event::Connected{});
  EXPECT_THAT(agent.Want("other", 1, {}), Contains(HasSubstr("does not know job")));
  EXPECT_THAT(agent.Pass(kGrace), Contains("term j.0.1"));
}

TEST(AgentMachineTest, SaysThatItLeavesBeforeItEndsItsWorkers) {
  Driver agent;
  agent.Do(agent_event::Connected{});
  agent.Want("c", 1, {"j.0.1"});
  EXPECT_THAT(agent.Do(agent_event::Stop{}), ElementsAre("said stopping", "term j.0.1"));
  EXPECT_THAT(agent.Do(agent_event::Stop{.kill = true}), ElementsAre("kill j.0.1"));
  // A new connection knows nothing of it.
  agent.Do(agent_event::Disconnected{"gone"});
  EXPECT_THAT(agent.Do(agent_event::Connected{}), ElementsAre("said stopping"));
}

TEST(AgentMachineTest, ARunsOwnAgentDoesNotSayThatItLeaves) {
  Driver agent({.announce_leaving = false});
  agent.Do(agent_event::Connected{});
  agent.Want("c", 1, {"j.0.1"});
  EXPECT_THAT(agent.Do(agent_event::Stop{}), ElementsAre("term j.0.1"));
}

}  // namespace
}  // namespace lockstep::launcher
