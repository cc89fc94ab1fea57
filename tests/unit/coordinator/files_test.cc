// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/journal.pb.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(FilesTest, AreOnTheNodesThatTheWorkersWereOn) {
  Cluster cluster(3, 2);
  cluster.Submit("j", 2, 2);
  cluster.Quiet();
  const auto found = FindFiles(cluster.state_, "mlp", cluster.now_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->job_id(), "j");
  EXPECT_EQ(found->run_dir(), cluster.job("j").run_dir);
  EXPECT_FALSE(found->command());
  ASSERT_EQ(found->nodes_size(), 2);
  EXPECT_TRUE(found->nodes(0).connected());
  EXPECT_EQ(FindFiles(cluster.state_, "other", cluster.now_).status().code(),
            absl::StatusCode::kNotFound);
  const std::string node = found->nodes(0).node_id();
  EXPECT_EQ(*FileSender(cluster.state_, "j", node, cluster.now_),
            cluster.state_.nodes.at(node).session);
  for (const auto& [id, unused] : cluster.state_.nodes) {
    if (id == node || id == found->nodes(1).node_id()) continue;
    EXPECT_EQ(FileSender(cluster.state_, "j", id, cluster.now_).status().code(),
              absl::StatusCode::kNotFound);
  }
  // One that a worker has left is told apart.
  for (const auto& [id, unused] : cluster.state_.nodes) {
    cluster.state_.jobs.at("j").left_nodes.insert(id);
  }
  const FindFilesResponse with_left = *FindFiles(cluster.state_, "j", cluster.now_);
  EXPECT_EQ(with_left.nodes_size(), 2);
  ASSERT_EQ(with_left.left_nodes_size(), 1);
  EXPECT_TRUE(
      FileSender(cluster.state_, "j", with_left.left_nodes(0).node_id(), cluster.now_).ok());
  cluster.state_.nodes.at(node).session = 0;
  const absl::Status away = FileSender(cluster.state_, "j", node, cluster.now_).status();
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(away.message()), HasSubstr("is away"));
}

// The version before had the node of one who had left in the row of its place alone.
TEST(FilesTest, AVacantPlaceOfAnEarlierVersionSaysWhereItsWorkerWas) {
  Cluster cluster(2, 2);
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  const std::string node = cluster.job("j").slots[0].node_id;
  const std::string left = node == "n0" ? "n1" : "n0";
  std::vector<Row> rows;
  for (const auto& [key, value] : cluster.rows_) {
    rows.push_back({key, value});
    if (key != "worker/j/1") continue;
    WorkerRecord record;
    record.set_slot(1);
    record.set_lives(1);
    record.set_left(true);
    record.set_node_id(left);
    record.mutable_exited()->set_peak_rss_bytes(1);
    ASSERT_TRUE(record.SerializeToString(&rows.back().value));
  }
  const absl::StatusOr<State> state = Restore(rows, Options(), cluster.now_);
  ASSERT_TRUE(state.ok()) << state.status();
  const FindFilesResponse found = *FindFiles(*state, "j", cluster.now_);
  ASSERT_EQ(found.nodes_size(), 1);
  EXPECT_EQ(found.nodes(0).node_id(), node);
  ASSERT_EQ(found.left_nodes_size(), 1);
  EXPECT_EQ(found.left_nodes(0).node_id(), left);
}

}  // namespace
}  // namespace lockstep::coordinator
