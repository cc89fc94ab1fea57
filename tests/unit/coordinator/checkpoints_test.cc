// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/checkpoints.h"

#include <gtest/gtest.h>

#include <vector>

#include "coordinator/core/core.h"
#include "proto/journal.pb.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

// What the version before the field wrote, and what one after it may have.
TEST(CheckpointRowTest, ARowWithoutACheckpointIsRead) {
  Cluster cluster(1, 2);
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  for (const bool there : {false, true}) {
    std::vector<Row> rows;
    for (const auto& [key, value] : cluster.rows_) {
      rows.push_back({key, value});
      if (key != "job/j") continue;
      JobRecord record;
      ASSERT_TRUE(record.ParseFromString(value));
      record.clear_checkpoint();
      if (there) record.mutable_checkpoint()->set_step(40);
      rows.back().value = record.SerializeAsString();
    }
    const auto state = Restore(rows, Options(), cluster.now_);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->jobs.at("j").checkpoint.has_value(), there);
    if (!there) continue;
    EXPECT_EQ(state->jobs.at("j").checkpoint->step(), 40);
  }
}

// A generation that only looked for a checkpoint published none: the members of the one before it
// may have, also when another such one follows.
TEST(NewestPublisherTest, IsTheNewestThatHadAState) {
  Cluster cluster(1, 2);
  cluster.finish_at_once = false;
  cluster.restarts = 9;
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  const auto newest = [&]() -> const Generation& { return cluster.job("j").generation.message; };
  const auto step = [&] {
    WorkerMessage message = Cluster::From(cluster.processes_.begin()->second);
    message.mutable_heartbeat()->set_generation(newest().generation());
    message.mutable_heartbeat()->mutable_since_first_commit();
    cluster.Say(cluster.processes_.begin()->second, message);
    cluster.Quiet();
  };
  const auto lose_all = [&] {
    const int64_t lost = newest().generation();
    while (!cluster.processes_.empty()) cluster.End(cluster.processes_.begin()->first, 0, 9);
    cluster.RunFor(absl::Seconds(5));
    EXPECT_EQ(newest().generation(), lost + 1);
    EXPECT_EQ(newest().start_step(), 0);
    return newest().previous_generation();
  };
  ASSERT_EQ(newest().generation(), 1);
  EXPECT_EQ(newest().previous_generation(), 0);
  step();
  EXPECT_EQ(lose_all(), 1);
  EXPECT_EQ(lose_all(), 1);
  cluster.Restart();
  cluster.twin_.reset();  // it knows of more progress
  EXPECT_EQ(lose_all(), 1);
  step();
  EXPECT_EQ(lose_all(), 4);
}

}  // namespace
}  // namespace lockstep::coordinator
