// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/job_record.h"

#include <gtest/gtest.h>

#include <vector>

#include "coordinator/core/core.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

// The clock was set back, or another host's coordinator was ahead of this one's.
TEST(JobRecordTest, AJobHasNotBegunLaterThanNow) {
  Cluster cluster(1, 2);
  cluster.finish_at_once = false;
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  const absl::Time started = cluster.job("j").started;
  ASSERT_LE(started, cluster.now_);
  std::vector<Row> rows;
  for (const auto& [key, value] : cluster.rows_) rows.push_back({key, value});
  const absl::Time before = started - absl::Hours(2);
  auto state = Restore(rows, Options(), before);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->jobs.at("j").started, before);
  EXPECT_LE(state->jobs.at("j").submitted, before);
  state = Restore(rows, Options(), cluster.now_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->jobs.at("j").started, started);
}

}  // namespace
}  // namespace lockstep::coordinator
