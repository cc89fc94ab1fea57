// SPDX-License-Identifier: Apache-2.0
// A message that an agent does not take would keep its node from all work, so a job that is too
// large for its workers on a node is refused.
#include "coordinator/core/assignment_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/client/channel.h"
#include "coordinator/core/core.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

class AssignmentSizeTest : public ::testing::Test {
 protected:
  Effects Do(const Event& event) { return Step(state_, event, now_ += absl::Milliseconds(200)); }
  Effects Join(int slots) {
    AgentSaid said;
    said.session = 1;
    AgentHello& hello = *said.message.mutable_hello();
    hello.set_node_id(std::string(255, 'n'));
    hello.set_incarnation("n-1");
    hello.set_host("host");
    hello.set_slots(slots);
    hello.set_protocol_version(1);
    return Do(said);
  }
  // With a job file of about so many bytes, half of it in the text and half in its meaning.
  static SubmitJobRequest Job(int workers, size_t bytes) {
    SubmitJobRequest request;
    JobSpec& spec = *request.mutable_spec();
    spec.set_name("large");
    spec.mutable_resources()->set_nodes(1);
    spec.mutable_resources()->set_nproc_per_node(workers);
    spec.mutable_run()->add_command("true");
    (*spec.mutable_env())["LONG"] = std::string(bytes / 2, 'x');
    request.set_source(std::string(bytes / 2, 'x'));
    request.set_submit_dir("/" + std::string(4000, 'd'));
    request.set_user("ann");
    return request;
  }
  // What the submission is answered; of one that is accepted `told` is the agent's message.
  absl::Status Submit(const SubmitJobRequest& request, AgentCommand* told = nullptr) {
    const Effects effects = Do(Submitted{absl::StrCat("j", ++jobs_), request});
    for (const ToAgent& message : effects.to_agents) {
      if (told != nullptr) *told = Whole(message);
    }
    return effects.reply;
  }

  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  int jobs_ = 0;
};

TEST_F(AssignmentSizeTest, ALongFileForManyWorkersOfANodeIsRefused) {
  Join(85);
  const absl::Status refused = Submit(Job(85, 1'680'000));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("for each of up to 85 workers there, of this job and of others: 143"));
  EXPECT_THAT(refused.message(), HasSubstr("of 50331648 at most"));
  EXPECT_TRUE(state_.jobs.empty());
  EXPECT_FALSE(Submit(Job(8, 1'680'000)).ok()) << "ten of these would be as many";
  // An ordinary file for as many workers as there may be.
  EXPECT_TRUE(Submit(Job(kMaxWorkers, 4'000)).ok());
}

// Whoever's they are, all come in one message.
TEST_F(AssignmentSizeTest, SeveralJobsOnANodeAreNotMore) {
  Join(20);
  AgentCommand told;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Submit(Job(4, 2'500'000), &told).ok());
    for (const ToAgent& message : Do(Tick{}).to_agents) told = Whole(message);
  }
  EXPECT_EQ(told.desired().workers_size(), 20);
  EXPECT_LT(told.ByteSizeLong(), size_t{kMaxReceivedBytes} * 7 / 8);
  EXPECT_FALSE(Submit(Job(4, 2'700'000)).ok());
}

// Finds the largest file that is accepted.
TEST_F(AssignmentSizeTest, TheLargestThatIsAcceptedIsBelowWhatAgentsTake) {
  for (const int workers : {12, 85, kMaxWorkers}) {
    SCOPED_TRACE(workers);
    size_t least = 0, most = size_t{8} << 20;
    while (most - least > 64) {
      const size_t middle = (least + most) / 2;
      State empty;
      (WhyTooLargeToAssign(empty, Job(workers, middle)).empty() ? least : most) = middle;
    }
    state_ = State();
    Join(workers);
    AgentCommand told;
    ASSERT_TRUE(Submit(Job(workers, least), &told).ok());
    ASSERT_EQ(told.desired().workers_size(), workers);
    EXPECT_GT(told.ByteSizeLong(), size_t{kMostAssigned} * 3 / 4);
    EXPECT_LT(told.ByteSizeLong(), size_t{kMaxReceivedBytes} * 7 / 8);
    EXPECT_FALSE(Submit(Job(workers, most)).ok());
  }
}

}  // namespace
}  // namespace lockstep::coordinator
