// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/stall.h"
#include "coordinator/core/straggler.h"

namespace lockstep::coordinator {
namespace {

MemberView Member(int rank, Activity activity, int64_t completed) {
  MemberView member;
  member.rank = rank;
  member.host = "b";
  member.pid = 810 + rank;
  member.heartbeat.mutable_progress()->set_phase(TRAINING);
  member.heartbeat.set_activity(activity);
  member.heartbeat.mutable_flight()->set_last_completed(completed);
  return member;
}

FlightState Reduction() {
  FlightState flight;
  flight.set_operation("tree_reduce");
  flight.set_sequence(4071);
  flight.set_dtype("f32");
  flight.set_count(25'600'000);
  flight.set_step(812);
  flight.set_bucket(3);
  return flight;
}

TEST(StallTest, SaysWhoWaitsAndWhatTheMissingOneDoes) {
  const std::vector<MemberView> waiting = {Member(0, REDUCING, 4070), Member(1, REDUCING, 4070),
                                           Member(3, REDUCING, 4070)};
  EXPECT_EQ(StallText(Reduction(), waiting, {Member(2, IN_DATA_LOADER, 4070)}, absl::Seconds(2)),
            "step 812, bucket 3, tree_reduce 4071 f32[25.6M]: ranks 0,1,3 wait 2 s; rank 2 last "
            "completed 4070, is in the data loader, host b pid 812");
}

TEST(StallTest, ASilentOneIsSaidToBeSilent) {
  MemberView stopped = Member(1, COMPUTING, 0);
  stopped.is_silent = true;
  stopped.silent = absl::Milliseconds(1500);
  FlightState flight;
  flight.set_operation("barrier");
  flight.set_sequence(2);
  EXPECT_EQ(StallText(flight, {Member(0, REDUCING, 1)}, {stopped}, absl::Milliseconds(1200)),
            "barrier 2: rank 0 waits 1.2 s; rank 1 has completed nothing yet, has said nothing for "
            "1.5 s (before: computes), host b pid 811");
}

TEST(StallTest, WaitsForCommitsHaveNoNumber) {
  FlightState flight;
  flight.set_operation("wait_committed");
  flight.set_step(7);
  EXPECT_EQ(
      StallText(flight, {Member(0, COMPUTING, 1), Member(1, COMPUTING, 1)}, {}, absl::Seconds(4)),
      "wait_committed of step 7: ranks 0,1 wait 4 s; they wait for each other");
}

StepShare Share(int64_t last, int step_ms, int wait_ms, int shards = 1) {
  return {shards, 100, last, absl::Milliseconds(step_ms), absl::Milliseconds(wait_ms)};
}

TEST(StragglerTest, NamesTheOneThatComesLast) {
  const auto slow = FindStraggler({Share(2, 31, 12), Share(96, 31, 0), Share(2, 31, 13)});
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(*slow, (Straggler{1, absl::Milliseconds(13), absl::Milliseconds(31)}));
}

TEST(StragglerTest, SmallDifferencesAndChangingOnesAreNone) {
  EXPECT_FALSE(FindStraggler({Share(10, 31, 3), Share(90, 31, 0)}));   // 11 % slower
  EXPECT_FALSE(FindStraggler({Share(60, 31, 12), Share(40, 31, 0)}));  // not last most of the time
  EXPECT_FALSE(FindStraggler({Share(100, 31, 0)}));
}

TEST(StragglerTest, WhoHoldsMoreShardsMayTakeLonger) {
  EXPECT_FALSE(FindStraggler({Share(100, 30, 0, 2), Share(0, 30, 15, 1), Share(0, 30, 14, 1)}));
  EXPECT_TRUE(FindStraggler({Share(100, 30, 0, 2), Share(0, 30, 20, 1), Share(0, 30, 20, 1)}));
}

TEST(StragglerTest, AFewReductionsTellNothing) {
  StepShare few = Share(5, 31, 0);
  few.reductions = 5;
  EXPECT_FALSE(FindStraggler({Share(0, 31, 20), few}));
}

}  // namespace
}  // namespace lockstep::coordinator
