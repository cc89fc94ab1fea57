// SPDX-License-Identifier: Apache-2.0
// The coordinator as a function: what happened and when -> what to do. No I/O, no clock, no
// threads, no randomness inside, so the same code runs in the service, in scenario tests and in
// simulations. Thread-safety: thread-compatible; the caller guards the state.
#ifndef LOCKSTEP_COORDINATOR_CORE_CORE_H_
#define LOCKSTEP_COORDINATOR_CORE_CORE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// Changes `state` by one event. `now` never goes back.
//
// A step takes the event in and then settles the state: takes the transitions that follow, and
// collects what is to be written and said. That costs time in proportion to the jobs, workers and
// nodes that there are; where it is more than some hundred microseconds, several events are settled
// together, Options::settle_spacing apart. Until then nothing of them is written or said. A user's
// request is settled at once.
Effects Step(State& state, const Event& event, absl::Time now);

// Appends the effects of a later step; its replies are left out.
void AppendEffects(Effects& effects, Effects later);

// The rows of `effects`, which are those of all steps that are not saved yet, could not be written.
// What happened to agents and workers stays in the state, as it did happen; jobs submitted by these
// steps were never accepted. The rows are written again by the next step, and commands that follow
// from the state are derived again with them. `effects` keeps what is derived from no state
// (answers to single messages, events for followers): the caller holds it back until a later step
// is saved. A Tick is due at `wake_at`.
void SaveFailed(State& state, Effects& effects, absl::Time now);

// The state of a coordinator that was away, from all rows of its journal. Nobody is connected; the
// time away, and that which everybody needs to come back, counts against no worker and no node. The
// first step may be taken at `now`.
// Errors: DataLoss when a row cannot be read; says which.
absl::StatusOr<State> Restore(const std::vector<Row>& rows, const Options& options, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_CORE_H_
