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

}  // namespace

Clock* WallClock() {
  static TimeOfDay* const clock = new TimeOfDay;
  return clock;
}

}  // namespace lockstep::coordinator
