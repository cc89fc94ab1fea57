// SPDX-License-Identifier: Apache-2.0
// A condition variable for absl::Mutex whose timeouts no change of the wall clock shortens or
// stretches: they are relative and run on CLOCK_MONOTONIC, as Clock::Real does. (Abseil's own timed
// waits sleep until an absolute time of CLOCK_REALTIME: set that back by an hour, and a wait of
// 10 ms takes an hour.) Waits without a timeout may use absl::Condition as ever.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_COND_VAR_H_
#define LOCKSTEP_COMMON_COND_VAR_H_

#include <atomic>
#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace lockstep {

class CondVar {
 public:
  // Wakes all who wait; called after a change that may make their condition true, with or without
  // the mutex held.
  void NotifyAll();

  // Releases `mu`, which the caller holds, sleeps until it is notified or for `timeout` at most,
  // and takes `mu` again. May return early for no reason, so callers look again.
  void WaitFor(absl::Mutex* mu, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Waits until `condition()` holds, `timeout` at most; it is called with `mu` held. Returns what
  // it said last. (Analysed for its callers alone: a condition that says which mutex it needs says
  // it by a name that means nothing here.)
  template <typename Condition>
  bool AwaitFor(absl::Mutex* mu, absl::Duration timeout, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    while (!condition()) {
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return condition();
      WaitFor(mu, left);
    }
    return true;
  }

 private:
  std::atomic<uint32_t> sequence_{0};
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_COND_VAR_H_
