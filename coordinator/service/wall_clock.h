// SPDX-License-Identifier: Apache-2.0
// The time of day as a clock: for what ends at a date. Clock::Real stands still while the machine
// is suspended. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_WALL_CLOCK_H_
#define LOCKSTEP_COORDINATOR_SERVICE_WALL_CLOCK_H_

#include <memory>

#include "common/clock.h"

namespace lockstep::coordinator {

// The machine's; lives for the whole program. It may be set back: nothing is to wait by it.
Clock* WallClock();

// Clock::Real with stamps by the wall clock as it is set now, not as it was when the program began:
// for what begins long after the program.
std::unique_ptr<Clock> MakeRealClock();

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_WALL_CLOCK_H_
