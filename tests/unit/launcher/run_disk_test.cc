// SPDX-License-Identifier: Apache-2.0
// A disk that does not answer, and those who must not wait for it.
#include "launcher/agent/run_disk.h"

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(20);

TEST(RunDiskTest, DoesAllInOrder) {
  std::vector<int> done;
  {
    RunDisk disk;
    for (int i = 0; i < 3; ++i) disk.Do([&done, i] { done.push_back(i); });
    EXPECT_TRUE(disk.Settle(kLong));
    EXPECT_THAT(done, ElementsAre(0, 1, 2));
    disk.Do([&done] { done.push_back(3); });
  }
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3)) << "also when nobody wants more of it";
}

TEST(RunDiskTest, NobodyWaitsForADiskThatDoesNotAnswer) {
  absl::Notification answers, begun, room;
  RunDisk disk;
  disk.Do(
      [&] {
        begun.Notify();
        answers.WaitForNotification();
      },
      RunDisk::kRoom);
  EXPECT_TRUE(disk.has_room());
  disk.Do([] {}, 1);
  EXPECT_FALSE(disk.has_room());
  disk.WhenRoom([&] { room.Notify(); });
  begun.WaitForNotification();
  EXPECT_FALSE(disk.Settle(absl::Milliseconds(1)));
  EXPECT_FALSE(room.HasBeenNotified());
  answers.Notify();
  room.WaitForNotification();
  EXPECT_TRUE(disk.Settle(kLong));
  EXPECT_TRUE(disk.has_room());
}

// A disk with three tasks, of which the first has begun; each ends when it is told to.
struct ThreeTasks {
  ThreeTasks() {
    for (int task = 0; task < 3; ++task) {
      disk.Do([this, task] {
        begun[task].Notify();
        ends[task].WaitForNotification();
      });
    }
    begun[0].WaitForNotification();
  }
  void EndAndAwaitNext(int task) {
    ends[task].Notify();
    begun[task + 1].WaitForNotification();
  }
  FakeClock clock;
  absl::Notification begun[3], ends[3];
  RunDisk disk{&clock};
};

// Each task of one that is slow takes as long as one of a disk that does not answer.
TEST(RunDiskTest, OneThatGoesFromOneSlowTaskToTheNextDoesNotKeepUp) {
  ThreeTasks t;
  RunDisk& disk = t.disk;
  EXPECT_TRUE(disk.keeps_up());
  t.clock.Advance(RunDisk::kPatience * 1.2);
  EXPECT_TRUE(disk.stands(RunDisk::kPatience));
  EXPECT_FALSE(disk.keeps_up());
  t.EndAndAwaitNext(0);
  EXPECT_FALSE(disk.stands(RunDisk::kPatience));
  EXPECT_FALSE(disk.keeps_up());
  t.clock.Advance(RunDisk::kPatience * 1.2);
  EXPECT_FALSE(disk.keeps_up());
  t.EndAndAwaitNext(1);
  EXPECT_FALSE(disk.keeps_up());
  t.ends[2].Notify();
  EXPECT_TRUE(disk.Settle(kLong));
  EXPECT_TRUE(disk.keeps_up()) << "nothing waits";
}

TEST(RunDiskTest, OneWhoseTasksAreQuickAgainKeepsUp) {
  ThreeTasks t;
  RunDisk& disk = t.disk;
  t.clock.Advance(RunDisk::kPatience * 1.2);
  t.EndAndAwaitNext(0);
  t.clock.Advance(RunDisk::kPatience * 0.6);
  t.EndAndAwaitNext(1);
  t.clock.Advance(RunDisk::kPatience * 0.6);
  EXPECT_TRUE(disk.keeps_up());
  t.ends[2].Notify();
}

TEST(RunDiskTest, WhoAsksForRoomThatIsThereIsTold) {
  absl::Notification room;
  RunDisk disk;
  disk.WhenRoom([&] { room.Notify(); });
  room.WaitForNotification();
}

TEST(RunDiskTest, WhatATaskHoldsGoesOnTheThread) {
  absl::Notification gone;
  std::shared_ptr<void> held(nullptr, [&](void*) { gone.Notify(); });
  RunDisk disk;
  disk.Do([held = std::move(held)] {});
  gone.WaitForNotification();
}

}  // namespace
}  // namespace lockstep::launcher
