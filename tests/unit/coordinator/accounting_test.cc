// SPDX-License-Identifier: Apache-2.0
// What users have used, by day.
#include "coordinator/core/accounting.h"

#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

class AccountingTest : public ::testing::Test {
 protected:
  // A node of `slots` comes.
  void Join(int slots) {
    AgentMessage agent;
    agent.mutable_hello()->set_node_id("n");
    agent.mutable_hello()->set_host("a");
    agent.mutable_hello()->set_slots(slots);
    agent.mutable_hello()->set_protocol_version(1);
    Step(state_, AgentSaid{1, agent}, now_);
  }
  void Submit(const std::string& id, int workers, bool hold = false) {
    SubmitJobRequest request;
    request.mutable_spec()->set_name("job");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(workers);
    request.mutable_spec()->mutable_train();
    request.set_user("ann");
    request.set_hold(hold);
    EXPECT_TRUE(Step(state_, Submitted{id, request}, now_).reply.ok());
  }
  // Of ann, from the day of `since` on.
  UserUsage Usage(absl::Time since = absl::InfinitePast()) {
    GetUsageRequest request;
    if (since != absl::InfinitePast()) *request.mutable_since() = ToProto(since);
    const GetUsageResponse response = GetUsage(state_, request, now_);
    return response.users_size() == 1 ? response.users(0) : UserUsage();
  }

  // The coordinator is killed and started again when its clock says `now`.
  void RestartAt(absl::Time now) {
    now_ = now;
    auto state = Restore(Rows(), state_.options, now_);
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
  }
  std::vector<Row> Rows() const {
    std::vector<Row> rows;
    for (const auto& [key, value] : state_.saved) rows.push_back({key, value});
    return rows;
  }
  // Time passes, and the coordinator looks at its jobs `every` so often.
  void Pass(absl::Duration time, absl::Duration every) {
    for (const absl::Time end = now_ + time; now_ < end;) Step(state_, Tick{}, now_ += every);
  }

  State state_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(12);
};

TEST_F(AccountingTest, OfAJobThatRunsTheDaysBeforeDoNotCount) {
  Join(2);
  Submit("j", 2);
  ASSERT_EQ(state_.jobs.at("j").state, STARTING);
  now_ += absl::Hours(24 + 13);  // 1 am, two midnights later
  EXPECT_EQ(Usage().slot_seconds(), 2 * 37 * 3600);
  EXPECT_EQ(Usage(now_).slot_seconds(), 2 * 3600);
  EXPECT_EQ(Usage(now_ - absl::Hours(24)).slot_seconds(), 2 * 25 * 3600);
  EXPECT_EQ(Usage(absl::UnixEpoch()).slot_seconds(), 2 * 37 * 3600);
  EXPECT_EQ(Usage(now_ + absl::Hours(24)).slot_seconds(), 0);
}

TEST_F(AccountingTest, AJobThatEndsBeforeItStartsHasEnded) {
  Submit("j", 2, /*hold=*/true);
  Step(state_, CancelRequested{"j", false, {}}, now_);
  ASSERT_TRUE(state_.jobs.at("j").final());
  EXPECT_EQ(Usage().ended_jobs(), 1);
  EXPECT_EQ(Usage(now_ + absl::Hours(24)).ended_jobs(), 0);
}

// Its use counts for half after seven days, while it runs as after a restart of the coordinator.
TEST_F(AccountingTest, TheUseOfALongJobFades) {
  Join(1);
  Submit("j", 1);
  ASSERT_EQ(state_.jobs.at("j").state, STARTING);
  constexpr double kWeek = 7 * 24 * 3600;
  const double expected = kWeek / std::numbers::ln2 * (1 - 1.0 / 16);
  Pass(absl::Hours(28 * 24), absl::Hours(4));
  EXPECT_NEAR(Usage().recent_use(), expected, expected / 100);
  Step(state_, CancelRequested{"j", true, {}}, now_);
  Pass(absl::Seconds(20), absl::Seconds(1));
  ASSERT_TRUE(state_.jobs.at("j").final());
  EXPECT_NEAR(Usage().recent_use(), expected, expected / 100);
  RestartAt(now_);
  EXPECT_NEAR(Usage().recent_use(), expected, expected / 100);
  EXPECT_NEAR(Usage().slot_seconds(), 4 * kWeek, 60);
}

// Nobody looked at it in all that time.
TEST_F(AccountingTest, TheUseOfAJobThatRunsFades) {
  Join(1);
  Submit("j", 1);
  now_ += absl::Hours(28 * 24);
  constexpr double kWeek = 7 * 24 * 3600;
  EXPECT_NEAR(Usage().recent_use(), kWeek / std::numbers::ln2 * (1 - 1.0 / 16), 1);
}

TEST_F(AccountingTest, WhatAJobHasIsWrittenDownWhileItHasIt) {
  Join(2);
  Submit("j", 2);
  Pass(absl::Hours(10), absl::Minutes(10));
  RestartAt(now_ + absl::Hours(2));
  EXPECT_NEAR(Usage().slot_seconds(), 2 * 12 * 3600, 1);
  EXPECT_GE(state_.jobs.at("j").meter.since, now_ - absl::Hours(3));
}

// The coordinator was started when the clock was at 1970, and again when that was right.
TEST_F(AccountingTest, TimeThatNobodyCanHaveSeenIsNotCounted) {
  Join(2);
  Submit("j", 2);
  state_.jobs.at("j").request.mutable_spec()->mutable_time_limit()->set_seconds(3600);
  Pass(absl::Minutes(10), absl::Minutes(10));
  RestartAt(now_ + absl::Hours(50 * 365 * 24));
  Pass(absl::Seconds(10), absl::Seconds(10));
  // What has not been written yet, of an hour at most, may be lost with it.
  EXPECT_NEAR(Usage().slot_seconds(), 2 * 310, 2 * 300);
  EXPECT_FALSE(state_.jobs.at("j").final());
  EXPECT_LT(now_ - state_.jobs.at("j").started, absl::Minutes(11));
  // What is written is of the clock that is right.
  RestartAt(now_ + absl::Seconds(1));
  EXPECT_NEAR(Usage().slot_seconds(), 2 * 311, 2 * 300);
}

// The rows of earlier versions do not say when a job was last seen.
TEST_F(AccountingTest, OfAnEarlierVersionsJobAllIsCounted) {
  Join(2);
  Submit("j", 2);
  Job& job = state_.jobs.at("j");
  job.meter.regular = false;
  SkipUnseen(job, now_ += absl::Hours(72));
  EXPECT_EQ(Usage().slot_seconds(), 2 * 72 * 3600);
}

TEST_F(AccountingTest, AClockThatIsFarAheadForgetsNoUse) {
  Join(2);
  Submit("j", 2);
  Pass(absl::Hours(2), absl::Minutes(10));
  const size_t days = state_.usage.size();
  ASSERT_GT(days, 0u);
  const absl::Time before = now_;
  RestartAt(now_ + absl::Hours(401 * 24));
  Pass(absl::Hours(2), absl::Minutes(10));
  EXPECT_GT(state_.leap, absl::Hours(400 * 24));
  EXPECT_GT(state_.usage.size(), days);
  RestartAt(before + absl::Hours(1));
  EXPECT_EQ(state_.leap, absl::ZeroDuration());
  EXPECT_NEAR(Usage().slot_seconds(), 2 * 4 * 3600, 60);
  EXPECT_LT(Usage().recent_use(), 2 * 3 * 3600) << "what that clock wrote is of no known age";
}

// The clock is set right while the coordinator runs.
TEST_F(AccountingTest, TimeThatAClockSkipsIsNotCounted) {
  Join(2);
  Submit("j", 2);
  state_.jobs.at("j").request.mutable_spec()->mutable_time_limit()->set_seconds(3600);
  Pass(absl::Minutes(10), absl::Minutes(10));
  Step(state_, Tick{}, now_ += absl::Hours(50 * 365 * 24));
  Pass(absl::Seconds(10), absl::Seconds(10));
  EXPECT_NEAR(Usage().slot_seconds(), 2 * 610, 2 * 600);
  EXPECT_FALSE(state_.jobs.at("j").final());
  EXPECT_FALSE(state_.jobs.at("j").drain);
  EXPECT_LT(now_ - state_.jobs.at("j").started, absl::Minutes(11));
  EXPECT_GT(state_.leap, absl::Hours(49 * 365 * 24));
}

// So it is, to an earlier time than it has written down.
TEST_F(AccountingTest, UseIsCountedAfterAClockThatWasAhead) {
  now_ += absl::Hours(1000);
  Join(2);
  Submit("j", 2);
  Pass(absl::Hours(2), absl::Minutes(10));
  now_ -= absl::Hours(1000);
  for (int hour = 0; hour < 3; ++hour, now_ += absl::Hours(1)) {
    Effects effects;
    Context context(state_, now_, effects);
    CountUse(context, state_.jobs.at("j"));
  }
  EXPECT_NEAR(Usage().slot_seconds(), 2 * 5 * 3600, 60);
  EXPECT_NEAR(Usage().recent_use(), 2 * 5 * 3600, 1000);
}

TEST_F(AccountingTest, AnEarlierStartCountsOnceInTheTimeThatAJobRan) {
  Submit("j", 2, /*hold=*/true);
  state_.jobs.at("j").ran = absl::Seconds(5);
  Step(state_, CancelRequested{"j", false, {}}, now_ += absl::Seconds(10));
  ASSERT_TRUE(state_.jobs.at("j").final());
  EXPECT_EQ(state_.jobs.at("j").result.wall_seconds(), 5);
}

TEST_F(AccountingTest, AJobEndsOnce) {
  Join(2);
  Submit("j", 2);
  Step(state_, CancelRequested{"j", true, {}}, now_);
  for (int i = 0; i < 20; ++i) Step(state_, Tick{}, now_ += absl::Seconds(1));
  ASSERT_TRUE(state_.jobs.at("j").final());
  EXPECT_EQ(Usage().ended_jobs(), 1);
}

}  // namespace
}  // namespace lockstep::coordinator
