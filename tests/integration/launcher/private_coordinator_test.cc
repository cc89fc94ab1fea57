// SPDX-License-Identifier: Apache-2.0
// The coordinator of a run, as its owner sees it end.
#include "launcher/local_run/private_coordinator.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/fd.h"
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

// systemd-tmpfiles lets a folder be whose lock somebody has.
TEST(PrivateCoordinatorTest, ItsFolderIsLockedAndOutlivesTheSession) {
  ::setenv("LOCKSTEP_COORDINATOR_BIN", "/bin/false", 1);
  const std::string session = ::testing::TempDir() + "/session";
  ::mkdir(session.c_str(), 0700);
  ::setenv("XDG_RUNTIME_DIR", session.c_str(), 1);
  auto spawner = Spawner::Fork();
  ASSERT_TRUE(spawner.ok()) << spawner.status();
  auto coordinator = PrivateCoordinator::Start(
      spawner->get(), {.on_restart = {}, .on_lost = [](const std::string&) {}});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  const std::string journal = (*coordinator)->journal();
  EXPECT_FALSE(absl::StartsWith(journal, session)) << journal;
  const UniqueFd folder(::open(journal.substr(0, journal.rfind('/')).c_str(), O_RDONLY));
  ASSERT_TRUE(folder.valid());
  EXPECT_EQ(::flock(folder.get(), LOCK_EX | LOCK_NB), -1);
  coordinator->reset();
  ::unsetenv("XDG_RUNTIME_DIR");
  ::rmdir(session.c_str());
}

}  // namespace
}  // namespace lockstep::launcher
