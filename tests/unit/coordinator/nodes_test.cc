// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/nodes.h"

#include <gtest/gtest.h>

#include "coordinator/core/node_record.h"
#include "coordinator/core/queue_view.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

TEST(NodesTest, APrivateNodeIsForAJobThatAsksForGpusItLacks) {
  State state;
  Node node;
  node.id = "n";
  node.slots = 2;
  node.session = 1;
  node.is_private = true;
  Job job;
  job.id = "j";
  job.request.mutable_spec()->mutable_resources()->set_device("cuda");
  job.request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  job.ask = AskOf(job);
  node.last_contact = absl::UnixEpoch();
  EXPECT_EQ(Room(state, job, node, absl::UnixEpoch()), 2);
  EXPECT_TRUE(IsFor(job, node)) << "it has room there";
  node.is_private = false;
  EXPECT_EQ(Room(state, job, node, absl::UnixEpoch()), 0);
  EXPECT_FALSE(IsFor(job, node));
}

TEST(NodesTest, RoomForWhoLeftADrainedNodeIsLookedForByThePassesOverTheQueue) {
  Cluster cluster(3, 1);
  cluster.Quiet();
  cluster.finish_at_once = false;
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(2);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_elastic()->set_min_workers(1);
  request.mutable_spec()->mutable_train()->set_shards(8);
  cluster.Step(Submitted{"j", request});
  cluster.RunFor(absl::Seconds(1));
  Job& job = cluster.state_.jobs.at("j");
  ASSERT_EQ(job.slots.size(), 2u);
  Exclusion& exclusion = job.excluded["n2"];
  exclusion.until = cluster.now_ + absl::Hours(1);
  cluster.Step(DrainRequested{"n1", "memory", "ann", {}});
  cluster.RunFor(absl::Seconds(3));
  const Slot& left = job.slots[1];
  ASSERT_TRUE(left.vacant() && left.returns);
  while (job.look_for_node_at < cluster.now_ + absl::Milliseconds(600)) {
    cluster.RunFor(absl::Milliseconds(100));
  }
  exclusion.until = cluster.now_;  // by time alone there is room
  cluster.RunFor(absl::Milliseconds(500));
  EXPECT_TRUE(left.vacant()) << "what the workers say makes nobody look at all nodes";
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(left.vacant());
  EXPECT_EQ(left.node_id, "n2");
  EXPECT_FALSE(left.returns);
}

// The clock by which it was written was ahead, or is behind now.
TEST(NodesTest, ANodeIsLeftOutNoLongerThanTheRulesSay) {
  const TrustRules rules;
  const absl::Time now = absl::UnixEpoch() + absl::Hours(50);
  Node written;
  written.trust.until = now + absl::Hours(1000);
  written.trust.failures.push_back({now + absl::Hours(1000), "it was lost", ""});
  Node node;
  FromRecord(ToRecord(written), rules, now, node);
  EXPECT_EQ(node.trust.until, now + rules.longest);
  ASSERT_EQ(node.trust.failures.size(), 1u);
  EXPECT_EQ(node.trust.failures[0].time, now);
  written.trust.until = now + absl::Minutes(2);
  written.trust.failures[0].time = now - absl::Minutes(2);
  Node same;
  FromRecord(ToRecord(written), rules, now, same);
  EXPECT_EQ(same.trust.until, written.trust.until);
  EXPECT_EQ(same.trust.failures[0].time, written.trust.failures[0].time);
}

TEST(NodesTest, UntilWhenANodeIsLeftOutHasADateWhenThatIsNotToday) {
  Node node;
  node.trust.until = absl::UnixEpoch() + absl::Hours(24) + absl::Minutes(5);
  node.trust.reason = "it failed";
  EXPECT_EQ(WhyNoWork(node, absl::UnixEpoch() + absl::Hours(24)),
            "left out until 00:05:00 UTC: it failed");
  EXPECT_EQ(WhyNoWork(node, absl::UnixEpoch() + absl::Hours(23)),
            "left out until 1970-01-02 00:05:00 UTC: it failed");
}

// An agent has a node of its own: the earlier ones would be there for ever, as nothing ends them.
TEST(NodesTest, AConnectionIsOneNodes) {
  State state;
  const auto say_hello = [&](const std::string& id) {
    AgentMessage message;
    message.mutable_hello()->set_node_id(id);
    message.mutable_hello()->set_host("a");
    message.mutable_hello()->set_slots(1);
    message.mutable_hello()->set_protocol_version(1);
    return Step(state, AgentSaid{1, message}, absl::UnixEpoch());
  };
  for (int i = 0; i < 2; ++i) {
    for (const ToAgent& message : say_hello("n").to_agents) EXPECT_FALSE(message.close);
  }
  const Effects refused = say_hello("m");
  ASSERT_EQ(refused.to_agents.size(), 1u);
  EXPECT_EQ(refused.to_agents[0].command.rejected().kind(), Rejected::MALFORMED);
  EXPECT_TRUE(refused.to_agents[0].close);
  EXPECT_EQ(state.nodes.count("m"), 0u);
  Step(state, AgentGone{1}, absl::UnixEpoch());
  EXPECT_EQ(state.nodes.at("n").session, 0u);
}

}  // namespace
}  // namespace lockstep::coordinator
