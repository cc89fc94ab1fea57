// SPDX-License-Identifier: Apache-2.0
#include "worker/control/disk_wait.h"

#include <thread>

#include "common/clock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

// Looks every second for so long, in which the disk has taken so much. Returns what the last look
// did.
bool LookFor(absl::Duration time, int64_t taken, DiskWait* wait, FakeClock* clock) {
  bool patient = true;
  for (absl::Duration at; at < time; at += absl::Seconds(1)) {
    clock->Advance(absl::Seconds(1));
    patient = wait->Look(taken);
  }
  return patient;
}

TEST(DiskWaitTest, TheBoardMovesWhileTheDiskTakesSomethingNowAndThen) {
  FakeClock clock;
  ProgressBoard board;
  DiskWait wait(&board, &clock);
  for (int64_t taken = 0; taken < 3; ++taken) {
    const int64_t moves = board.moves;
    EXPECT_TRUE(wait.Look(taken));
    EXPECT_TRUE(LookFor(kDiskPatience - absl::Seconds(1), taken, &wait, &clock));
    EXPECT_EQ(board.moves, moves + absl::ToInt64Seconds(kDiskPatience));
  }
}

TEST(DiskWaitTest, ADiskThatTakesNothingForLongIsAHang) {
  FakeClock clock;
  ProgressBoard board;
  DiskWait wait(&board, &clock);
  EXPECT_TRUE(wait.Look(5));
  EXPECT_FALSE(LookFor(kDiskPatience, 5, &wait, &clock));
  const int64_t moves = board.moves;
  EXPECT_FALSE(LookFor(absl::Seconds(1), 5, &wait, &clock));
  EXPECT_EQ(board.moves, moves);
  EXPECT_TRUE(wait.Look(6)) << "it is sound again";
}

// The disk had no chance to take anything either.
TEST(DiskWaitTest, TimeInWhichThisProcessStoodStillDoesNotCount) {
  FakeClock clock;
  ProgressBoard board;
  DiskWait wait(&board, &clock);
  EXPECT_TRUE(wait.Look(5));
  clock.Advance(2 * kDiskPatience);
  EXPECT_TRUE(wait.Look(5));
  EXPECT_TRUE(LookFor(kDiskPatience - absl::Seconds(2), 5, &wait, &clock));
  EXPECT_FALSE(LookFor(absl::Seconds(1), 5, &wait, &clock));
}

TEST(DiskWaitTest, TheBoardMovesWhileAFlushSaysNothing) {
  ProgressBoard board;
  const absl::Status status =
      WorkOnDisk(&board, Clock::Real(), [&](const std::function<bool()>& go_on) {
        EXPECT_TRUE(go_on());
        while (board.moves < 2) std::this_thread::yield();
        return absl::ResourceExhaustedError("the disk is full");
      });
  EXPECT_EQ(status, absl::ResourceExhaustedError("the disk is full"));
}

}  // namespace
}  // namespace lockstep::worker
