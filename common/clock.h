// SPDX-License-Identifier: Apache-2.0
// Time as an argument. Code that waits or stamps takes a Clock, so that tests run without sleeping.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_CLOCK_H_
#define LOCKSTEP_COMMON_CLOCK_H_

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace lockstep {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic in practice: only differences of it are meaningful for timeouts.
  virtual absl::Time Now() = 0;
  // Blocks the caller for `duration` (returns at once when it is not positive).
  virtual void Sleep(absl::Duration duration) = 0;

  // The machine's clock; lives for the whole program.
  static Clock* Real();
};

// A clock that stands still until a test advances it; Sleep advances it and returns.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() override;
  void Sleep(absl::Duration duration) override;
  // Moves the time on.
  void Advance(absl::Duration duration);

 private:
  absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_CLOCK_H_
