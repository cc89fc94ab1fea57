// SPDX-License-Identifier: Apache-2.0
// What is told of one job.
#include <string>

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
