// SPDX-License-Identifier: Apache-2.0
#include "worker/control/telemetry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/lock_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/fake_session.h"

namespace lockstep::worker {
namespace {

// Longer than the test: no beat comes by itself.
constexpr absl::Duration kNever = absl::Hours(2);

class TelemetryTest : public ::testing::Test {
 protected:
  TelemetryTest() { link_.Start(); }

  WorkerHeartbeat Last() { return wire_.Sent().back().heartbeat(); }

  FakeSession::Wire wire_;
  ControlLink link_{{}, FakeSession::On(&wire_)};
  ProgressBoard board_;
};

TEST_F(TelemetryTest, BeatsByItself) {
  Telemetry telemetry(&board_, &link_, Clock::Real(), absl::Milliseconds(1));
  wire_.WaitForSent(3);
  EXPECT_GT(Last().rss_bytes(), 0);
}

TEST_F(TelemetryTest, BeatsSoonWhenItIsAsked) {
  FakeClock clock(absl::FromUnixSeconds(1000));
  Telemetry telemetry(&board_, &link_, &clock, kNever);
  board_.generation = 4;
  board_.step = 12;
  board_.Moved();
  telemetry.BeatSoon();
  wire_.WaitForSent(1);
  EXPECT_EQ(Last().generation(), 4);
  EXPECT_EQ(Last().progress().step(), 12);
  EXPECT_EQ(Last().progress_counter(), 1);
  EXPECT_FALSE(Last().has_since_first_commit());
  EXPECT_FALSE(Last().has_since_restored());
  board_.first_commit = absl::ToUnixNanos(clock.Now() - absl::Seconds(3));
  board_.restored = absl::ToUnixNanos(clock.Now() - absl::Seconds(5));
  telemetry.Send();
  EXPECT_EQ(Last().since_first_commit().seconds(), 3);
  EXPECT_EQ(Last().since_restored().seconds(), 5);
  board_.EnterGeneration(5);
  telemetry.Send();
  EXPECT_EQ(Last().generation(), 5);
  EXPECT_FALSE(Last().has_since_first_commit());
  EXPECT_FALSE(Last().has_since_restored());
}

// Real but for Sleep, which lasts until it is told to end.
class SleepyClock : public Clock {
 public:
  absl::Time Now() override { return Clock::Real()->Now(); }
  void Sleep(absl::Duration) override { wake_.WaitForNotification(); }
  void Wake() { wake_.Notify(); }

 private:
  absl::Notification wake_;
};

// As one that hangs, the disk of the ledger gives no turn to write, from the beginning to the end.
TEST_F(TelemetryTest, ADiskHoldsUpNothingButTheRecord) {
  std::string dir = testing::TempDir() + "/telemetry_XXXXXX";
  ASSERT_NE(::mkdtemp(dir.data()), nullptr);
  const std::string path = dir + "/ledger.bin";
  UniqueFd held(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  SleepyClock clock;
  RunRecord record(dir, 1000, &clock);
  {
    Telemetry telemetry(&board_, &link_, Clock::Real(), absl::Milliseconds(1));
    // Before the first write, which does not end.
    record.SetWriter(true, false);
    record.Step(1, 0.05, 1.5, 0.1, 3072);
    record.Ledger(1, 0, 1, 11);
    telemetry.SetRecord(&record);
    telemetry.BeatSoon();
    // The lines are written before the records.
    while (ReadText(dir + "/metrics.jsonl").empty()) std::this_thread::yield();
    board_.step = 7;
    const size_t sent = wire_.Sent().size();
    wire_.WaitForSent(sent + 3);
    EXPECT_EQ(Last().progress().step(), 7);
    record.Ledger(2, 0, 1, 22);
    record.SetWriter(false, true);
    telemetry.Send();
    EXPECT_EQ(ReadText(path), "");
    held.reset();
    clock.Wake();
  }
  EXPECT_EQ(ReadText(path).size(), 2 * 24u) << "it is written at the end";
  std::filesystem::remove_all(dir);
}

TEST_F(TelemetryTest, SaysWhatTheWorkerIsInAndForWhomItWaits) {
  FlightRecorder recorder;
  Telemetry telemetry(&board_, &link_, Clock::Real(), kNever);
  telemetry.SetRecorder(&recorder);
  Operation operation;
  operation.kind = OpKind::kBarrier;
  operation.sequence = 7;
  recorder.Begin(operation, 0);
  recorder.Waiting(2);
  telemetry.Send();
  EXPECT_EQ(Last().waiting_for(), 3);
  EXPECT_EQ(Last().flight().operation(), "barrier");
  EXPECT_EQ(Last().flight().sequence(), 7);
  EXPECT_LT(Last().flight().open_us(), 3'600'000'000);
  recorder.End(absl::StatusCode::kOk);
  telemetry.Send();
  EXPECT_EQ(Last().waiting_for(), 0);
  EXPECT_EQ(Last().flight().operation(), "");
}

// A large state on a thin line is no hang.
TEST_F(TelemetryTest, WhatMovesBetweenRanksIsProgress) {
  FlightRecorder recorder;
  Telemetry telemetry(&board_, &link_, Clock::Real(), kNever);
  telemetry.SetRecorder(&recorder);
  board_.Moved();
  telemetry.Send();
  EXPECT_EQ(Last().progress_counter(), 1);
  recorder.Moved();
  telemetry.Send();
  EXPECT_EQ(Last().progress_counter(), 2);
  telemetry.Send();
  EXPECT_EQ(Last().progress_counter(), 2);
}

TEST_F(TelemetryTest, AReadOfDataIsProgressForAsLongAsADiskMayTake) {
  FakeClock clock;
  Telemetry telemetry(&board_, &link_, &clock, kNever);
  const auto send_for = [&](absl::Duration time) {
    for (absl::Duration at; at < time; at += absl::Seconds(1)) {
      clock.Advance(absl::Seconds(1));
      telemetry.Send();
    }
    return Last().progress_counter();
  };
  board_.Do(COMPUTING);
  EXPECT_EQ(send_for(absl::Seconds(2)), 0);
  {
    const ProgressBoard::Part reading(&board_, IN_DATA_LOADER);
    EXPECT_EQ(send_for(absl::Seconds(2)), 2);
    const int64_t patient = send_for(kDiskPatience);
    EXPECT_LE(patient, absl::ToInt64Seconds(kDiskPatience));
    EXPECT_EQ(send_for(absl::Seconds(2)), patient) << "it gives nothing any more";
    board_.Moved();
    EXPECT_EQ(send_for(absl::Seconds(2)), patient + 3) << "it is another read";
  }
  EXPECT_EQ(board_.activity, COMPUTING);
  const int64_t moves = board_.moves;
  EXPECT_EQ(send_for(absl::Seconds(2)), moves);
}

TEST_F(TelemetryTest, BeatsOnceMoreAtItsEnd) {
  { Telemetry telemetry(&board_, &link_, Clock::Real(), kNever); }
  EXPECT_EQ(wire_.Sent().size(), 1);
}

}  // namespace
}  // namespace lockstep::worker
