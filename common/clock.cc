// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace lockstep {
namespace {

// CLOCK_MONOTONIC moved to the wall clock's origin once, so that stamps can be printed and
// differences never jump when the wall clock is set.
class RealClock : public Clock {
 public:
  RealClock() : offset_(absl::Now() - Monotonic()) {}
  absl::Time Now() override { return Monotonic() + offset_; }
  void Sleep(absl::Duration duration) override {
    if (duration > absl::ZeroDuration()) absl::SleepFor(duration);
  }

 private:
  static absl::Time Monotonic() {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return absl::TimeFromTimespec(ts);
  }
  const absl::Duration offset_;
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

absl::Time FakeClock::Now() {
  absl::MutexLock lock(&mu_);
  return now_;
}

void FakeClock::Sleep(absl::Duration duration) { Advance(duration); }

void FakeClock::Advance(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  if (duration > absl::ZeroDuration()) now_ += duration;
}

}  // namespace lockstep
