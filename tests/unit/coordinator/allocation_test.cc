// SPDX-License-Identifier: Apache-2.0
// What workers have of their nodes, in the journal and out of it again.
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
#include "gtest/gtest.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

class AllocationTest : public ::testing::Test {
 protected:
  void Take(const Event& event) {
    const Effects effects = Step(state_, event, now_);
    EXPECT_TRUE(effects.reply.ok()) << effects.reply;
    for (const Row& row : effects.rows) rows_[row.key] = row.value;
  }
  void Agent(SessionId session) {
    AgentSaid said{session, {}};
    AgentHello& hello = *said.message.mutable_hello();
    hello.set_node_id("n");
    hello.set_incarnation("n-1");
    hello.set_slots(4);
    hello.set_protocol_version(1);
    for (const char* uuid : {"GPU-0", "GPU-1"}) {
      Device& device = *hello.add_devices();
      device.set_kind("cuda");
      device.set_uuid(uuid);
    }
    Take(said);
  }
  void Submit(const std::string& id) {
    SubmitJobRequest request;
    JobSpec& spec = *request.mutable_spec();
    spec.set_name("mlp");
    spec.mutable_resources()->set_nodes(1);
    spec.mutable_resources()->set_nproc_per_node(1);
    spec.mutable_resources()->set_cpus_per_proc(3);
    spec.mutable_resources()->set_memory(1 << 20);
    spec.mutable_resources()->set_device("cuda");
    spec.mutable_train()->set_shards(1);
    Take(Submitted{id, request});
  }
  void Restart() {
    std::vector<Row> rows;
    for (const auto& [key, value] : rows_) rows.push_back({key, value});
    absl::StatusOr<State> restored = Restore(rows, Options(), now_);
    ASSERT_TRUE(restored.ok()) << restored.status();
    state_ = *std::move(restored);
  }
  Allocation Has(const std::string& job) {
    const auto described = DescribeJob(state_, job, now_);
    EXPECT_TRUE(described.ok()) << described.status();
    return described->members_size() == 1 ? described->members(0).allocation() : Allocation();
  }
  void ExpectWhole(const Allocation& allocation, const std::string& gpu) {
    EXPECT_EQ(allocation.cpus(), 3);
    EXPECT_EQ(allocation.memory(), 1 << 20);
    ASSERT_EQ(allocation.gpus_size(), 1);
    EXPECT_EQ(allocation.gpus(0), gpu);
  }

  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<std::string, std::string> rows_;
};

TEST_F(AllocationTest, IsKnownToTheNextCoordinator) {
  Agent(1);
  Submit("j");
  ExpectWhole(Has("j"), "GPU-0");
  WorkerRecord record;
  ASSERT_TRUE(record.ParseFromString(rows_.at("worker/j/0")));
  ExpectWhole(record.allocation(), "GPU-0");
  Restart();
  ExpectWhole(Has("j"), "GPU-0");
  Agent(2);
  Submit("k");
  ExpectWhole(Has("k"), "GPU-1");
}

TEST_F(AllocationTest, ARowOfTheVersionBeforeIsRead) {
  Agent(1);
  Submit("j");
  WorkerRecord record;
  ASSERT_TRUE(record.ParseFromString(rows_.at("worker/j/0")));
  record.clear_allocation();
  rows_["worker/j/0"] = record.SerializeAsString();
  Restart();
  ExpectWhole(Has("j"), "GPU-0");
  Agent(2);
  Submit("k");
  ExpectWhole(Has("k"), "GPU-1");
}

TEST_F(AllocationTest, ANodesRowOfTheVersionBeforeIsRead) {
  Agent(1);
  NodeRecord record;
  ASSERT_TRUE(record.ParseFromString(rows_.at("node/n")));
  EXPECT_FALSE(record.has_drain());
  EXPECT_EQ(record.times_left_out(), 0);
  Restart();
  EXPECT_FALSE(state_.nodes.at("n").drain.has_value());
}

}  // namespace
}  // namespace lockstep::coordinator
