// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/pauses.h"

#include <gtest/gtest.h>

namespace lockstep::coordinator {
namespace {

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(PausesTest, APauseTakesItsOwnTimeOutOfTheWaitsThatItIsIn) {
  Pauses pauses;
  EXPECT_EQ(pauses.End(At(100), absl::Seconds(10)), At(110));
  pauses.Add(absl::Seconds(3), At(105));
  EXPECT_EQ(pauses.End(At(100), absl::Seconds(10)), At(113));
  EXPECT_EQ(pauses.End(At(104), absl::Seconds(10)), At(115)) << "it began within the pause";
  EXPECT_EQ(pauses.End(At(105), absl::Seconds(10)), At(115)) << "it began after it";
  pauses.Add(absl::Seconds(1), At(107));
  EXPECT_EQ(pauses.End(At(100), absl::Seconds(10)), At(114));
  EXPECT_EQ(pauses.End(At(105), absl::Seconds(10)), At(116));
}

TEST(PausesTest, TimeInTwoPausesIsTakenOutOnce) {
  Pauses pauses;
  for (int second = 102; second <= 120; second += 2) pauses.Add(absl::Seconds(5), At(second));
  EXPECT_EQ(pauses.End(At(90), absl::Seconds(10)), At(90 + 10 + 23));
  EXPECT_EQ(pauses.End(At(110), absl::Seconds(10)), At(110 + 10 + 10));
  EXPECT_EQ(pauses.End(At(120), absl::Seconds(10)), At(130));
}

TEST(PausesTest, WaitsFromBeforeBeginWhenAllHaveComeBack) {
  Pauses pauses;
  pauses.BeginAt(At(100));
  EXPECT_EQ(pauses.End(At(50), absl::Seconds(10)), At(110));
  pauses.Add(absl::Seconds(3), At(98));
  EXPECT_EQ(pauses.End(At(50), absl::Seconds(10)), At(113)) << "they come back later";
  pauses.Add(absl::Seconds(2), At(105));
  EXPECT_EQ(pauses.End(At(50), absl::Seconds(10)), At(115));
}

TEST(PausesTest, NoWaitIsEndedByWhatIsForgotten) {
  Pauses pauses;
  // Half of all time is paused, for longer than any wait would last without.
  for (int second = 2; second <= 400; second += 2) pauses.Add(absl::Seconds(1), At(second));
  EXPECT_EQ(pauses.End(At(400) - 2 * Pauses::kLongestWait, Pauses::kLongestWait), At(400));
  EXPECT_LE(pauses.End(At(100), Pauses::kLongestWait), At(400));
}

}  // namespace
}  // namespace lockstep::coordinator
