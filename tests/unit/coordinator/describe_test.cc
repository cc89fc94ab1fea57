// SPDX-License-Identifier: Apache-2.0
// What is told of one job.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

// A node of `slots` comes.
void Join(State& state, int slots, absl::Time now) {
  AgentMessage agent;
  agent.mutable_hello()->set_node_id("n");
  agent.mutable_hello()->set_host("a");
  agent.mutable_hello()->set_slots(slots);
  agent.mutable_hello()->set_protocol_version(1);
  Step(state, AgentSaid{1, agent}, now);
}

SubmitJobRequest RequestOf(int nodes, int per_node) {
  SubmitJobRequest request;
  request.mutable_spec()->set_name("job");
  request.mutable_spec()->mutable_resources()->set_nodes(nodes);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(per_node);
  return request;
}

TEST(DescribeTest, AJobThatWaitsForNodesSaysWhatStartsThem) {
  const auto waits = [](NodesBy by) {
    State state;
    state.options.nodes_by = by;
    const absl::Time now = absl::UnixEpoch();
    Join(state, 1, now);
    SubmitJobRequest request = RequestOf(2, 2);
    request.mutable_spec()->mutable_train();
    Step(state, Submitted{"j", request}, now);
    const auto described = DescribeJob(state, "j", now);
    return described.ok() ? described->status().reason() : described.status().ToString();
  };
  EXPECT_THAT(waits(NodesBy::kJoin), testing::HasSubstr("'launcher join --slots=2' makes one"));
  EXPECT_THAT(waits(NodesBy::kSameCommand),
              testing::EndsWith("is connected; start another with the same command"));
  EXPECT_THAT(waits(NodesBy::kNobody), testing::EndsWith("is connected"));
}

// Jobs run without a time limit meanwhile, whose end would not help.
TEST(DescribeTest, AJobThatCanNeverStartSaysSo) {
  const absl::Time now = absl::UnixEpoch();
  State state;
  state.options.quotas["bob"].slots = 1;
  Join(state, 2, now);
  SubmitJobRequest running = RequestOf(1, 2);
  running.mutable_spec()->mutable_train();
  ASSERT_TRUE(Step(state, Submitted{"runs", running}, now).reply.ok());
  int submitted = 0;
  const auto why = [&](SubmitJobRequest request) {
    request.mutable_spec()->mutable_train();
    const std::string id = absl::StrCat("j", ++submitted);
    const Effects effects = Step(state, Submitted{id, request}, now);
    if (!effects.reply.ok()) return effects.reply.ToString();
    const auto described = DescribeJob(state, id, now);
    if (!described.ok()) return described.status().ToString();
    return described->status().queue().no_estimate();
  };
  EXPECT_EQ(why(RequestOf(1, 3)), "no node of this cluster has 3 slots");
  EXPECT_EQ(why(RequestOf(2, 2)),
            "the nodes of this cluster cannot hold it, even when all are free");
  SubmitJobRequest labelled = RequestOf(1, 1);
  (*labelled.mutable_spec()->mutable_resources()->mutable_labels())["gpu"] = "h100";
  EXPECT_EQ(why(labelled), "no node of this cluster has gpu=h100");
  SubmitJobRequest elsewhere = RequestOf(1, 1);
  elsewhere.mutable_spec()->mutable_resources()->set_rank0_node("node-x");
  EXPECT_EQ(why(elsewhere), "rank 0 is to be on node-x, which is no node of this cluster");
  SubmitJobRequest large = RequestOf(1, 2);
  large.set_user("bob");
  EXPECT_EQ(why(large), "it asks for more than the quota of bob allows at all");
  EXPECT_EQ(why(RequestOf(1, 2)), "jobs without a time limit run or come before it");
  Step(state, DrainRequested{"n", "memory", "ann", {}}, now);
  EXPECT_EQ(why(RequestOf(1, 2)), "the nodes that could hold it take no work now");
}

// When a command trains is not known.
TEST(DescribeTest, ACommandHasNoGoodput) {
  State state;
  const absl::Time now = absl::UnixEpoch();
  Join(state, 2, now);
  SubmitJobRequest request = RequestOf(1, 1), command = request;
  request.mutable_spec()->mutable_train();
  command.mutable_spec()->mutable_run()->add_command("true");
  EXPECT_TRUE(Step(state, Submitted{"trains", request}, now).reply.ok());
  EXPECT_TRUE(Step(state, Submitted{"runs", command}, now).reply.ok());
  const absl::Time later = now + absl::Seconds(1);
  EXPECT_TRUE(DescribeJob(state, "trains", later)->has_goodput());
  EXPECT_FALSE(DescribeJob(state, "runs", later)->has_goodput());
}

}  // namespace
}  // namespace lockstep::coordinator
