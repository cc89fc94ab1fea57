// SPDX-License-Identifier: Apache-2.0
// Signs of life: workers that are silent, that stand still, or that never got started, and nodes
// that are out of sight.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_HEALTH_H_
#define LOCKSTEP_COORDINATOR_CORE_HEALTH_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Judges the workers of a running job by the time, and sets when to look again.
void CheckHealth(Context& context, Job& job);

// The middle one of the worker's newest steps; 0: it has done none.
absl::Duration MedianStep(const Worker& worker);
// Returns what the worker may take for one move, as its steps tell: ten of them, or as long as the
// first one took, which is longer than others, until these are known. 0: it has made none.
absl::Duration StepLimit(const Worker& worker);

// A coordinator that stood still itself (stopped, starved) knows nothing about the time in between:
// it counts against nobody. Called first in each step.
void ForgivePause(Context& context);
// Begins to hold back what was decided: it is not said from now on, and is said again: the time
// between counts against nobody, and nobody is judged in it.
void Hold(Context& context);
void Release(Context& context);
// For a coordinator that was away: what happened before counts as of `then`, which may lie ahead.
void ForgiveTime(State& state, absl::Time then);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_HEALTH_H_
