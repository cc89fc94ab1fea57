// SPDX-License-Identifier: Apache-2.0
#include "worker/control/generation_end.h"

#include "collectives/group_end.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

// Ranks 0 and 1 are here, rank 2 is elsewhere.
GroupSpec Three() {
  GroupSpec group;
  group.generation = 7;
  for (int rank = 0; rank < 3; ++rank) {
    GroupMember member;
    member.rank = rank;
    member.node = rank < 2 ? "here" : "there";
    group.members.push_back(member);
  }
  group.rank = 0;
  return group;
}

absl::Status Ended(EndCause cause, int rank) {
  return WithEnd(absl::AbortedError("as it was"), {cause, rank});
}

void ExpectTold(const GenerationEnd& end, int rank, PeerLost::Kind kind) {
  ASSERT_EQ(end.told.size(), 1u);
  EXPECT_EQ(end.told[0].generation(), 7);
  EXPECT_EQ(end.told[0].rank(), rank);
  EXPECT_EQ(end.told[0].kind(), kind) << PeerLost::Kind_Name(end.told[0].kind());
  EXPECT_EQ(end.told[0].detail(), "as it was");
}

TEST(AfterFailureTest, WhoDiedHereIsNamed) {
  const GenerationEnd end = AfterFailure(Three(), "here", Ended(EndCause::kPeerDied, 1));
  ExpectTold(end, 1, PeerLost::DIED);
  EXPECT_TRUE(absl::IsAborted(end.status));
}

TEST(AfterFailureTest, WhoseConnectionFromElsewhereEndedIsSilentAndNotDead) {
  ExpectTold(AfterFailure(Three(), "here", Ended(EndCause::kPeerDied, 2)), 2, PeerLost::SILENT);
  ExpectTold(AfterFailure(Three(), "here", Ended(EndCause::kUnreachable, 2)), 2, PeerLost::SILENT);
}

TEST(AfterFailureTest, TheWayBetweenTwoOthersIsNotItsOwn) {
  const absl::Status heard =
      WithEnd(absl::AbortedError("as it was"), {EndCause::kUnreachable, 2, /*hearsay=*/true});
  ExpectTold(AfterFailure(Three(), "here", heard), -1, PeerLost::SILENT);
}

TEST(AfterFailureTest, WhatIsToldIsText) {
  const absl::Status status = WithEnd(absl::AbortedError("c\xe9.txt"), {EndCause::kPeerDied, 1});
  EXPECT_EQ(AfterFailure(Three(), "here", status).told.at(0).detail(), "c\\xe9.txt");
}

TEST(AfterFailureTest, TheNetworksFaultEndsNoWorker) {
  const absl::Status status = WithEnd(absl::DataLossError("as it was"), {EndCause::kDamaged, 2});
  const GenerationEnd end = AfterFailure(Three(), "here", status);
  ExpectTold(end, 2, PeerLost::DAMAGED);
  EXPECT_TRUE(absl::IsAborted(end.status)) << end.status;
}

TEST(AfterFailureTest, AnEndThatNobodyIsToBlameForIsToldWithoutARank) {
  ExpectTold(AfterFailure(Three(), "here", absl::AbortedError("as it was")), -1, PeerLost::DIED);
}

TEST(AfterFailureTest, ItsOwnFailureIsNobodyElses) {
  const GenerationEnd end = AfterFailure(Three(), "here", absl::DataLossError("a bad file"));
  EXPECT_TRUE(end.told.empty());
  EXPECT_EQ(end.status, absl::DataLossError("a bad file"));
}

TEST(AfterNoConnectionTest, WhoCannotBeReachedElsewhereIsForTheCoordinatorToJudge) {
  for (const EndCause cause : {EndCause::kUnreachable, EndCause::kPeerMissing}) {
    const absl::Status status = WithEnd(absl::DeadlineExceededError("as it was"), {cause, 2});
    const GenerationEnd end = AfterNoConnection(Three(), "here", status, /*heard=*/true);
    ExpectTold(end, 2, PeerLost::UNREACHABLE);
    EXPECT_TRUE(absl::IsAborted(end.status)) << "it is ready for the next generation";
    EXPECT_TRUE(end.not_met);
  }
}

TEST(AfterNoConnectionTest, ANodeWithoutAnAddressIsOutOfReachFromBothSides) {
  const GroupSpec group = Three();
  for (const int without : {0, 2}) {
    const absl::Status status = NoAddress(group.members[static_cast<size_t>(without)],
                                          group.members[static_cast<size_t>(2 - without)], 2);
    const GenerationEnd end = AfterNoConnection(group, "here", status, /*heard=*/true);
    ASSERT_EQ(end.told.size(), 1u);
    EXPECT_EQ(end.told[0].rank(), 2);
    EXPECT_EQ(end.told[0].kind(), PeerLost::UNREACHABLE);
    EXPECT_THAT(end.told[0].detail(), testing::HasSubstr("whose node has no address"));
    EXPECT_TRUE(absl::IsAborted(end.status)) << "nothing ends for good";
  }
}

TEST(AfterNoConnectionTest, OneOfEachNodeThatCannotBeReachedIsNamed) {
  GroupSpec group = Three();
  for (const int rank : {3, 4}) {
    group.members.push_back(group.members[2]);
    group.members.back().rank = rank;
  }
  group.members[4].node = "far";
  const absl::Status status =
      WithMissing(WithEnd(absl::DeadlineExceededError("all"), {EndCause::kPeerMissing, 2}),
                  {{2, "two"}, {3, "three"}, {4, "fo\xe9r\n"}});
  const GenerationEnd end = AfterNoConnection(group, "here", status, /*heard=*/true);
  ASSERT_EQ(end.told.size(), 2u);
  EXPECT_EQ(end.told[0].rank(), 2);
  EXPECT_EQ(end.told[0].detail(), "two");
  EXPECT_EQ(end.told[1].rank(), 4);
  EXPECT_THAT(end.told[1].detail(), testing::HasSubstr("fo\\xe9r"));
  for (const PeerLost& lost : end.told) {
    EXPECT_EQ(lost.generation(), 7);
    EXPECT_EQ(lost.kind(), PeerLost::UNREACHABLE);
  }
  EXPECT_EQ(end.status, absl::AbortedError("all"));
  EXPECT_TRUE(end.not_met);
}

TEST(AfterNoConnectionTest, TheWayBetweenTwoOthersIsNotItsOwn) {
  const absl::Status hearsay =
      WithEnd(absl::AbortedError("as it was"), {EndCause::kUnreachable, 2, /*hearsay=*/true});
  const GenerationEnd end = AfterNoConnection(Three(), "here", hearsay, /*heard=*/true);
  ExpectTold(end, -1, PeerLost::SILENT);
  EXPECT_TRUE(absl::IsAborted(end.status));
}

TEST(AfterNoConnectionTest, WhoDidNotComeHereEndsThisWorkerToo) {
  const absl::Status status =
      WithEnd(absl::DeadlineExceededError("as it was"), {EndCause::kPeerMissing, 1});
  const GenerationEnd end = AfterNoConnection(Three(), "here", status, /*heard=*/true);
  ExpectTold(end, 1, PeerLost::DIED);
  EXPECT_TRUE(absl::IsDeadlineExceeded(end.status));
  EXPECT_FALSE(end.not_met);
}

// It may have been away between telling this member of the generation and telling the other.
TEST(AfterNoConnectionTest, WhoDidNotComeHereWhileTheCoordinatorWasAwayIsWaitedFor) {
  const absl::Status status =
      WithEnd(absl::DeadlineExceededError("as it was"), {EndCause::kPeerMissing, 1});
  const GenerationEnd end = AfterNoConnection(Three(), "here", status, /*heard=*/false);
  EXPECT_TRUE(end.told.empty());
  EXPECT_EQ(end.status, absl::AbortedError("as it was")) << "it is ready for the next generation";
  EXPECT_TRUE(end.not_met);
}

TEST(AfterNoConnectionTest, ADeathHereIsNamedAlsoWhileTheCoordinatorIsAway) {
  const GenerationEnd end =
      AfterNoConnection(Three(), "here", Ended(EndCause::kPeerDied, 1), /*heard=*/false);
  ExpectTold(end, 1, PeerLost::DIED);
}

TEST(AfterNoConnectionTest, WhatTheNetworkDidToAMemberHereIsNoReasonToGoOn) {
  const absl::Status status =
      WithEnd(absl::UnavailableError("as it was"), {EndCause::kUnreachable, 1});
  const GenerationEnd end = AfterNoConnection(Three(), "here", status, /*heard=*/true);
  ExpectTold(end, 1, PeerLost::SILENT);
  EXPECT_TRUE(absl::IsUnavailable(end.status));
}

TEST(ReachPatienceTest, ItIsFailureDetectionAndNoLessThanAConnectionMayTake) {
  JobSpec job;
  job.mutable_failure_detection()->set_seconds(20);
  EXPECT_EQ(ReachPatience(job), absl::Seconds(20));
  job.mutable_failure_detection()->set_seconds(1);
  EXPECT_EQ(ReachPatience(job), absl::Seconds(5));
}

}  // namespace
}  // namespace lockstep::worker
