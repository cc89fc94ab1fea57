// SPDX-License-Identifier: Apache-2.0
// What an agent says of the coordinators that it has obeyed.
#include <string>

#include "gtest/gtest.h"
#include "launcher/agent/machine.h"

namespace lockstep::launcher {
namespace {

// It is what shows a coordinator with an older copy of the journal that there was a later one.
TEST(AgentMachineTest, SaysHowTheCoordinatorThatItObeysProvedItself) {
  AgentMachine machine((AgentMachineOptions()));
  const auto want = [&](const std::string& cluster, int64_t epoch, const std::string& proof) {
    agent_event::Command event;
    event.command.set_cluster_id(cluster);
    event.command.set_epoch(epoch);
    event.command.set_epoch_proof(proof);
    event.command.mutable_desired();
    machine.Step(event, absl::UnixEpoch());
  };
  want("c", 3, "third");
  EXPECT_EQ(machine.Hello().epoch_proof(), "third");
  want("c", 3, "");
  EXPECT_EQ(machine.Hello().epoch_proof(), "third") << "one that shows nothing takes nothing away";
  want("c", 2, "second");
  EXPECT_EQ(machine.Hello().epoch(), 3);
  EXPECT_EQ(machine.Hello().epoch_proof(), "third");
  want("d", 1, "");
  EXPECT_EQ(machine.Hello().epoch_proof(), "");
  agent_event::Adopted adopted;
  adopted.assignment.set_incarnation("j.0.1");
  adopted.cluster = "c";
  adopted.epoch = {4, "fourth"};
  machine.Step(adopted, absl::UnixEpoch());
  EXPECT_EQ(machine.Hello().epoch(), 4);
  EXPECT_EQ(machine.Hello().epoch_proof(), "fourth");
  adopted.assignment.set_incarnation("j.1.1");
  adopted.epoch = {4, ""};  // started by an agent of an earlier version
  machine.Step(adopted, absl::UnixEpoch());
  EXPECT_EQ(machine.Hello().epoch_proof(), "fourth");
}

}  // namespace
}  // namespace lockstep::launcher
