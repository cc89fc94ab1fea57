// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/wall_clock.h"

#include "absl/time/clock.h"

namespace lockstep::coordinator {
namespace {

class TimeOfDay : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  void Sleep(absl::Duration duration) override { Clock::Real()->Sleep(duration); }
};

class RealSinceNow : public Clock {
 public:
  absl::Time Now() override { return Clock::Real()->Now() + offset_; }
  void Sleep(absl::Duration duration) override { Clock::Real()->Sleep(duration); }

 private:
  const absl::Duration offset_ = absl::Now() - Clock::Real()->Now();
};

}  // namespace

Clock* WallClock() {
  static TimeOfDay* const clock = new TimeOfDay;
  return clock;
}

std::unique_ptr<Clock> MakeRealClock() { return std::make_unique<RealSinceNow>(); }

}  // namespace lockstep::coordinator
