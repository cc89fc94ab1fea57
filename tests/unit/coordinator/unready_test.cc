// SPDX-License-Identifier: Apache-2.0
// Jobs that are held or wait for others.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/context.h"
#include "coordinator/core/core.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;

class UnreadyTest : public ::testing::Test {
 protected:
  SubmitJobRequest Request() {
    SubmitJobRequest request;
    request.mutable_spec()->set_name("job");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
    request.mutable_spec()->mutable_train();
    return request;
  }
  Effects Submit(const std::string& id, const SubmitJobRequest& request) {
    Effects effects = Step(state_, Submitted{id, request}, now_);
    EXPECT_TRUE(effects.reply.ok()) << effects.reply;
    return effects;
  }
  void SubmitAfter(const std::string& id, const std::vector<std::string>& others) {
    SubmitJobRequest request = Request();
    for (const std::string& other : others) request.add_after(other);
    Submit(id, request);
  }
  // The array "a0", and then one job that waits for all of it.
  void SubmitArray(int size) {
    for (int i = 0; i < size; ++i) {
      SubmitJobRequest request = Request();
      request.mutable_array()->set_index(i);
      if (i > 0) request.mutable_array()->set_id("a0");
      Submit(absl::StrCat("a", i), request);
    }
    SubmitJobRequest request = Request();
    request.add_after_any("a0");
    Submit("dependent", request);
  }
  Effects Cancel(const std::string& id) {
    return Step(state_, CancelRequested{id, true, {}}, now_ += absl::Seconds(1));
  }

  State state_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(UnreadyTest, WhoStillWaitsForTheSameIsNotTouched) {
  SubmitJobRequest held = Request();
  held.set_hold(true);
  Submit("held", held);
  SubmitAfter("dependent", {"held"});
  Effects effects;
  Context context(state_, now_, effects);
  Schedule(context);
  EXPECT_THAT(context.touched_jobs, testing::IsEmpty());
  EXPECT_THAT(effects.events, testing::IsEmpty());
  EXPECT_EQ(state_.jobs.at("dependent").reason, "waits for the success of held");
}

TEST_F(UnreadyTest, PassesAreAsFarApartAsAllJobsThatWaitMakeThem) {
  SubmitJobRequest held = Request();
  held.set_hold(true);
  for (int i = 0; i < 3; ++i) Submit(absl::StrCat("held", i), held);
  SubmitAfter("dependent", {"held0"});
  EXPECT_EQ(state_.waiting, 4);
}

TEST_F(UnreadyTest, AChainEndsAtOnce) {
  // Each waits for one whose id comes after its own.
  constexpr int kJobs = 100;
  SubmitJobRequest held = Request();
  held.set_hold(true);
  Submit(absl::StrCat("j", 1000 + kJobs), held);
  for (int i = kJobs - 1; i >= 0; --i) {
    SubmitAfter(absl::StrCat("j", 1000 + i), {absl::StrCat("j", 1001 + i)});
  }
  Cancel(absl::StrCat("j", 1000 + kJobs));
  for (const auto& [id, job] : state_.jobs) EXPECT_EQ(job.state, CANCELLED) << id;
  EXPECT_THAT(state_.jobs.at("j1000").reason, HasSubstr("job j1001 had to succeed before"));
}

// For a day of that it would come before the jobs of users with less use.
TEST_F(UnreadyTest, TheTimeForWhichAJobCouldNotStartIsNoWaiting) {
  Cluster cluster(0, 0);
  SubmitJobRequest held = Request(), dependent = Request();
  held.set_hold(true);
  dependent.add_after_any("held");
  cluster.Step(Submitted{"plain", Request()});
  cluster.Step(Submitted{"held", held});
  cluster.Step(Submitted{"dependent", dependent});
  const auto since = [&cluster](const std::string& id) { return cluster.job(id).ready_since; };
  const absl::Time begin = since("plain");
  cluster.now_ += absl::Hours(25);
  cluster.Step(HoldRequested{"held", /*release=*/true});
  EXPECT_EQ(since("held"), cluster.now_);
  const absl::Time released = cluster.now_;
  cluster.now_ += absl::Hours(25);
  cluster.Step(CancelRequested{"held", true, {}});
  EXPECT_EQ(since("dependent"), cluster.now_);
  const absl::Time ended = cluster.now_;
  cluster.now_ += absl::Hours(2);
  cluster.Restart();
  EXPECT_EQ(since("plain"), begin);
  EXPECT_EQ(since("held"), released);
  EXPECT_EQ(since("dependent"), ended);
  std::map<std::string, bool> overdue;
  const QueueView view = ViewQueue(cluster.state_, cluster.now_);
  for (size_t i = 0; i < view.waiting.size(); ++i) {
    overdue[view.waiting[i]->id] = view.queue.waiting[i].overdue;
  }
  EXPECT_THAT(overdue, ElementsAre(Pair("dependent", false), Pair("plain", true)));
}

TEST_F(UnreadyTest, OfAnArrayAFewAreNamed) {
  SubmitArray(100);
  Step(state_, Tick{}, now_ += absl::Seconds(1));
  EXPECT_THAT(state_.jobs.at("dependent").reason, EndsWith("the end of a0, a1, a10 and 97 more"));
}

// What it waits for is written down anew for each eighth that ends, and not for each one.
TEST_F(UnreadyTest, WhoWaitsForAnArrayIsSeldomWrittenDown) {
  SubmitArray(600);
  int rows = 0, events = 0;
  for (int i = 0; i < 600; ++i) {
    const Effects effects = Cancel(absl::StrCat("a", i));
    if (i % 30 == 0) EXPECT_EQ(FindStaleRow(state_), "");
    for (const Row& row : effects.rows) rows += row.key == "job/dependent";
    for (const Append& append : effects.events) events += append.job_id == "dependent";
  }
  EXPECT_LT(rows, 100);
  EXPECT_LT(events, 100);
  Step(state_, Tick{}, now_ += absl::Seconds(1));
  EXPECT_TRUE(state_.jobs.at("dependent").after_any.empty());
}

// One that has succeeded and is forgotten is not taken for one that has not.
TEST_F(UnreadyTest, WhatIsForgottenIsWaitedForByNobody) {
  state_.options.keep_ended = 0;
  state_.options.keep_ended_for = absl::ZeroDuration();
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) {
    ids.push_back(absl::StrCat("j", i));
    Submit(ids.back(), Request());
  }
  SubmitAfter("dependent", ids);
  for (const int i : {3, 4}) {  // ends well
    state_.jobs.at(ids[i]).ending.emplace().target = SUCCEEDED;
    state_.unsettled.jobs.insert(ids[i]);
    for (int tick = 0; tick < 4; ++tick) Step(state_, Tick{}, now_ += absl::Seconds(1));
    EXPECT_EQ(state_.jobs.count(ids[i]), 0u);
    EXPECT_EQ(state_.jobs.at("dependent").state, PENDING) << state_.jobs.at("dependent").reason;
  }
}

}  // namespace
}  // namespace lockstep::coordinator
