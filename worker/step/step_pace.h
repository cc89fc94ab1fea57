// SPDX-License-Identifier: Apache-2.0
// Steps that take a certain time at least, however fast the machine is: for tests, which then know
// how long a job lasts, and let others compute meanwhile. No bit depends on it.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_STEP_PACE_H_
#define LOCKSTEP_WORKER_STEP_STEP_PACE_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace lockstep::worker {

class StepPace {
 public:
  static constexpr const char* kVariable = "LOCKSTEP_STEP_TIME";  // "2ms"

  StepPace(Clock* clock, absl::Duration least) : clock_(clock), least_(least) {}
  // As the environment says; without the variable steps take no longer than they must.
  // Errors: InvalidArgument when it is no duration.
  static absl::StatusOr<StepPace> FromEnvironment(Clock* clock);

  // A step begins. Blocks until the one before has taken its time.
  void BeginStep();

 private:
  Clock* clock_;
  absl::Duration least_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_STEP_PACE_H_
