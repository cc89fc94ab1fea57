// SPDX-License-Identifier: Apache-2.0
// A disk that does not answer, and those who must not wait for it.
#include "launcher/agent/run_disk.h"

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
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
