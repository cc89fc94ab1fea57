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

// A coordinator that stood still itself (stopped, suspended) knows nothing about the time in
// between: all workers and nodes count as heard from now.
void ForgivePause(Context& context);
// The same for one that was away: what happened before counts as of `then`, which may lie ahead.
void ForgiveTime(State& state, absl::Time then);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_HEALTH_H_
