// SPDX-License-Identifier: Apache-2.0
// What users have used, by day.
#include "coordinator/core/accounting.h"

#include <string>

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
