// SPDX-License-Identifier: Apache-2.0
#include "worker/control/disk_wait.h"

#include <thread>

#include "common/clock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

TEST(DiskWaitTest, TheBoardMovesWhileTheDiskTakesSomethingNowAndThen) {
  FakeClock clock;
  ProgressBoard board;
  DiskWait wait(&board, &clock);
  for (int64_t taken = 0; taken < 3; ++taken) {
    const int64_t moves = board.moves;
    EXPECT_TRUE(wait.Look(taken));
    clock.Advance(kDiskPatience - absl::Seconds(1));
    EXPECT_TRUE(wait.Look(taken));
    EXPECT_EQ(board.moves, moves + 2);
  }
}

TEST(DiskWaitTest, ADiskThatTakesNothingForLongIsAHang) {
  FakeClock clock;
  ProgressBoard board;
  DiskWait wait(&board, &clock);
  EXPECT_TRUE(wait.Look(5));
  clock.Advance(kDiskPatience);
  const int64_t moves = board.moves;
  EXPECT_FALSE(wait.Look(5));
  EXPECT_EQ(board.moves, moves);
  EXPECT_TRUE(wait.Look(6)) << "it is sound again";
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
