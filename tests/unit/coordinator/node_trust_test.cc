// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/node_trust.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kNot = absl::ZeroDuration();

class NodeTrustTest : public ::testing::Test {
 protected:
  // A failure `after` the one before; for how long the node is left out because of it.
  absl::Duration Fail(absl::Duration after, const std::string& job_id = "") {
    now_ += after;
    return NoteFailure(rules_, {now_, "no disk", job_id}, trust_);
  }

  TrustRules rules_;
  NodeTrust trust_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(NodeTrustTest, TheThirdFailureWithinTheWindowIsOneTooMany) {
  EXPECT_EQ(Fail(absl::ZeroDuration()), kNot);
  EXPECT_EQ(Fail(absl::Minutes(4)), kNot);
  EXPECT_FALSE(IsLeftOut(trust_, now_));
  EXPECT_EQ(Fail(absl::Minutes(4)), absl::Minutes(1));
  EXPECT_TRUE(IsLeftOut(trust_, now_ + absl::Seconds(59)));
  EXPECT_FALSE(IsLeftOut(trust_, now_ + absl::Seconds(60)));
  EXPECT_THAT(trust_.reason, HasSubstr("failed 3 times, last: no disk"));
}

TEST_F(NodeTrustTest, SeldomFailuresAreForgiven) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Fail(absl::Minutes(6)), kNot) << i;
}

TEST_F(NodeTrustTest, ThreeJobsWithinAnHourAreEnough) {
  EXPECT_EQ(Fail(absl::ZeroDuration(), "a"), kNot);
  EXPECT_EQ(Fail(absl::Minutes(20), "b"), kNot);
  EXPECT_EQ(Fail(absl::Minutes(20), "c"), absl::Minutes(1));
}

TEST_F(NodeTrustTest, OneJobIsNoWitnessTwice) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Fail(absl::Minutes(1), "a"), kNot) << i;
  EXPECT_EQ(Fail(absl::Minutes(1), "b"), kNot);
  EXPECT_EQ(Fail(absl::Minutes(1)), absl::Minutes(1));
}

TEST_F(NodeTrustTest, WhatHappensInOneMomentIsOneFailure) {
  EXPECT_EQ(Fail(absl::ZeroDuration(), "a"), kNot);
  EXPECT_EQ(Fail(absl::Seconds(1), "b"), kNot);
  EXPECT_EQ(Fail(absl::Seconds(1), "c"), kNot);
  EXPECT_EQ(trust_.failures.size(), 1u);
}

TEST_F(NodeTrustTest, EachTimeIsTwiceAsLong) {
  Fail(absl::ZeroDuration());
  Fail(absl::Minutes(1));
  EXPECT_EQ(Fail(absl::Minutes(1)), absl::Minutes(1));
  // One that was left out is tried once.
  for (const int minutes : {2, 4, 8, 16, 30, 30}) {
    EXPECT_EQ(Fail(absl::Minutes(31)), absl::Minutes(minutes));
  }
}

TEST_F(NodeTrustTest, AFailureWhileItIsLeftOutCountsNothing) {
  Fail(absl::ZeroDuration());
  Fail(absl::Minutes(1));
  EXPECT_EQ(Fail(absl::Minutes(1)), absl::Minutes(1));
  const absl::Time until = trust_.until;
  EXPECT_EQ(Fail(absl::Seconds(30)), kNot);
  EXPECT_EQ(trust_.until, until);
  EXPECT_EQ(trust_.times, 1);
}

TEST_F(NodeTrustTest, AnHourWithoutFailuresBeginsAnew) {
  Fail(absl::ZeroDuration());
  Fail(absl::Minutes(1));
  Fail(absl::Minutes(1));
  EXPECT_EQ(Fail(absl::Minutes(62)), kNot);
  EXPECT_EQ(Fail(absl::Minutes(1)), kNot);
  EXPECT_EQ(Fail(absl::Minutes(1)), absl::Minutes(1));
}

}  // namespace
}  // namespace lockstep::coordinator
