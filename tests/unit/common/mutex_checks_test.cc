// SPDX-License-Identifier: Apache-2.0
#include "common/mutex_checks.h"

#include <unistd.h>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Takes two mutexes in one order and then in the other, which nothing but a check minds.
void TakeBothWays() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  absl::Mutex a, b;
  a.Lock();
  b.Lock();
  b.Unlock();
  a.Unlock();
  b.Lock();
  a.Lock();
  a.Unlock();
  b.Unlock();
}

#ifdef NDEBUG
TEST(MutexChecksTest, ReleaseProgramsLockWithoutThem) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kAbort);
  EXPECT_DEATH(TakeBothWays(), "cycle");
  SkipMutexChecksInRelease();
  TakeBothWays();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kAbort);
}
#else
TEST(MutexChecksTest, ProgramsForDebuggingKeepThem) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kAbort);
  SkipMutexChecksInRelease();
  EXPECT_DEATH(TakeBothWays(), "cycle");
}
#endif

}  // namespace
}  // namespace lockstep
