// SPDX-License-Identifier: Apache-2.0
// Steps that take a certain time at least, however fast the machine is, until a file is there: for
// tests, whose jobs then last until they have done with them what they want, and let others compute
// meanwhile. No bit depends on it.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_STEP_PACE_H_
#define LOCKSTEP_WORKER_STEP_STEP_PACE_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace lockstep::worker {

class StepPace {
 public:
  static constexpr const char* kVariable = "LOCKSTEP_STEP_TIME";     // "2ms"
  static constexpr const char* kUntil = "LOCKSTEP_STEP_TIME_UNTIL";  // a path; none: always

  // `until` empty: always.
  StepPace(Clock* clock, absl::Duration least, std::string until = "")
      : clock_(clock), least_(least), until_(std::move(until)) {}
  // As the environment says; without the first variable steps take no longer than they must.
  // Errors: InvalidArgument when it is no duration.
  static absl::StatusOr<StepPace> FromEnvironment(Clock* clock);

  // A step begins. Blocks until the one before has taken its time, unless that is over.
  void BeginStep();

 private:
  Clock* clock_;
  absl::Duration least_;
  std::string until_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_STEP_PACE_H_
