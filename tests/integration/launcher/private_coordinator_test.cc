// SPDX-License-Identifier: Apache-2.0
// The coordinator of a run, as its owner sees it end.
#include "launcher/local_run/private_coordinator.h"

#include <stdlib.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// What the callback uses is its owner's, who may be gone when the destructor has returned.
TEST(PrivateCoordinatorTest, IsNotGoneWhileItTellsOfItsEnd) {
  ::setenv("LOCKSTEP_COORDINATOR_BIN", "/bin/false", 1);
  auto spawner = Spawner::Fork();
  ASSERT_TRUE(spawner.ok()) << spawner.status();
  absl::Notification told, go_on, gone;
  std::string how;
  std::atomic<bool> heard{false};
  auto coordinator = PrivateCoordinator::Start(
      spawner->get(), {.on_restart = {}, .on_lost = [&](const std::string& what) {
                         how = what;
                         told.Notify();
                         go_on.WaitForNotification();
                         heard = true;
                       }});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  ASSERT_TRUE(told.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(how, "exited with code 1");
  std::jthread owner([&] {
    coordinator->reset();
    EXPECT_TRUE(heard);
    gone.Notify();
  });
  EXPECT_FALSE(gone.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
  go_on.Notify();
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kLong));
}

}  // namespace
}  // namespace lockstep::launcher
