// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_link.h"

#include <signal.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "common/farewell.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/fake_session.h"
#include "worker/control/farewell_watch.h"

namespace lockstep::worker {
namespace {

using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Minutes(5);

WorkerBootstrap Bootstrap() {
  WorkerBootstrap bootstrap;
  bootstrap.set_coordinator_address("unix:here");
  bootstrap.set_token("secret");
  bootstrap.mutable_assignment()->set_incarnation("life");
  return bootstrap;
}

class ControlLinkTest : public ::testing::Test {
 protected:
  ControlLinkTest() { link_.Start(); }
  void Begin(int64_t generation) {
    WorkerCommand command;
    command.mutable_generation()->set_generation(generation);
    command.mutable_generation()->add_members();
    wire_.callbacks.on_command(command);
  }
  void Abort(int64_t generation) {
    WorkerCommand command;
    command.mutable_abort()->set_generation(generation);
    command.mutable_abort()->set_reason("rank 1 died");
    wire_.callbacks.on_command(command);
  }
  void Leave() {
    WorkerCommand command;
    command.mutable_exit()->set_reason("the job is over");
    command.mutable_exit()->set_code(4);
    wire_.callbacks.on_command(command);
  }

  FakeSession::Wire wire_;
  ControlLink link_{Bootstrap(), FakeSession::On(&wire_)};
};

TEST_F(ControlLinkTest, TheTokenIsShownOnTheConnection) {
  EXPECT_EQ(wire_.options.address, "unix:here");
  EXPECT_EQ(wire_.options.token, "secret");
}

TEST_F(ControlLinkTest, AWaitEndsWithTheGenerationThatComes) {
  std::jthread coordinator([&] {
    wire_.WaitForSent(1);
    Begin(2);
  });
  link_.SendReady({});
  const auto generation = link_.WaitForGeneration(0, kLong);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ((*generation)->generation(), 2);
}

TEST_F(ControlLinkTest, AWaitEndsWithoutOneAfterItsTime) {
  const auto generation = link_.WaitForGeneration(0, absl::ZeroDuration());
  ASSERT_TRUE(generation.ok());
  EXPECT_FALSE(generation->has_value());
}

TEST_F(ControlLinkTest, AWaitEndsWithTheExit) {
  Leave();
  EXPECT_EQ(link_.WaitForGeneration(0, kLong).status(), absl::CancelledError("the job is over"));
  EXPECT_EQ(link_.exit_requested()->code(), 4);
}

TEST_F(ControlLinkTest, NobodyWaitsForACoordinatorThatIsGoneForGood) {
  std::jthread agent([&] { link_.LoseCoordinator(); });
  EXPECT_TRUE(absl::IsCancelled(link_.WaitForGeneration(0, kLong).status()));
  EXPECT_TRUE(link_.coordinator_lost());
  EXPECT_TRUE(link_.drain_requested()) << "a generation that runs is to stop";
  Abort(1);
  CheckpointMark mark;
  mark.set_generation(1);
  EXPECT_TRUE(link_.OfferCheckpoint(mark, kLong).ok());
  EXPECT_FALSE(link_.FinishAndWait({}).has_value());
}

TEST_F(ControlLinkTest, AFarewellThatCameBeforeItsWatchIsHeard) {
  FarewellWatch::Block();
  ASSERT_EQ(::kill(::getpid(), kFarewellSignal), 0);
  absl::Notification heard;
  FarewellWatch watch([&] { heard.Notify(); });
  EXPECT_TRUE(heard.WaitForNotificationWithTimeout(kLong));
}

TEST_F(ControlLinkTest, AnAbortReachesTheWatchedGenerationOnly) {
  std::string reason;
  link_.WatchGeneration(2, [&](const std::string& why) { reason = why; });
  Abort(1);
  EXPECT_EQ(reason, "");
  Abort(2);
  EXPECT_EQ(reason, "rank 1 died");
  reason.clear();
  link_.UnwatchGeneration();
  Abort(3);
  EXPECT_EQ(reason, "");
}

TEST_F(ControlLinkTest, WhoConnectsIsToldThatTheCoordinatorIsGoneForGood) {
  std::string reason;
  link_.WatchGeneration(
      2, [&](const std::string& why) { reason = why; }, /*connecting=*/true);
  link_.LoseCoordinator();
  EXPECT_EQ(reason, "the coordinator is gone for good");
}

TEST_F(ControlLinkTest, WhoConnectsKnowsWhetherTheCoordinatorWasHeardAllTheTime) {
  wire_.callbacks.on_connection(true, "");
  link_.WatchGeneration(
      2, [](const std::string&) {}, /*connecting=*/true);
  EXPECT_TRUE(link_.heard());
  wire_.callbacks.on_connection(false, "gone");
  wire_.callbacks.on_connection(true, "");
  EXPECT_FALSE(link_.heard());
}

TEST_F(ControlLinkTest, AReconnectSaysReadyAgain) {
  wire_.callbacks.on_connection(true, "");
  link_.SendReady({});
  wire_.callbacks.on_connection(false, "gone");
  wire_.callbacks.on_connection(true, "");
  EXPECT_THAT(wire_.Sent(), SizeIs(2));
  EXPECT_TRUE(wire_.Sent()[1].has_ready());
}

TEST_F(ControlLinkTest, FinishWaitsForTheExitOrTheGenerationsEnd) {
  WorkerFinished finished;
  finished.set_generation(5);
  {
    std::jthread coordinator([&] {
      wire_.WaitForSent(1);
      Abort(5);
    });
    EXPECT_FALSE(link_.FinishAndWait(finished).has_value()) << "it was not the end";
  }
  Leave();
  EXPECT_EQ(link_.FinishAndWait(finished)->code(), 4);
}

TEST_F(ControlLinkTest, TheLostRankIsNamed) {
  PeerLost lost;
  lost.set_generation(5);
  lost.set_rank(2);
  link_.SendPeerLost(lost);
  const auto sent = wire_.Sent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].incarnation(), "life");
  EXPECT_EQ(sent[0].peer_lost().generation(), 5);
  EXPECT_EQ(sent[0].peer_lost().rank(), 2);
}

TEST_F(ControlLinkTest, LastWordsLeaveBeforeTheWorker) {
  link_.SendFailed(5, absl::NotFoundError("no data"), WorkerFailed::OTHER_DATA);
  const auto sent = wire_.Sent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].failed().code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(sent[0].failed().message(), "no data");
  EXPECT_EQ(sent[0].failed().kind(), WorkerFailed::OTHER_DATA);
  absl::MutexLock lock(&wire_.mu);
  EXPECT_TRUE(wire_.flushed);
}

// The wire carries no other text than UTF-8: a message with some would not arrive.
TEST_F(ControlLinkTest, LastWordsNameFilesWhoseNamesAreNotUtf8) {
  link_.SendFailed(5, absl::NotFoundError("no c\xe9.txt\nin here"), WorkerFailed::OTHER_DATA);
  const auto sent = wire_.Sent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].failed().message(), "no c\\xe9.txt\nin here");
}

}  // namespace
}  // namespace lockstep::worker
