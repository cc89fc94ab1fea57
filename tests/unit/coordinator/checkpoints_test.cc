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

}  // namespace
}  // namespace lockstep::coordinator
