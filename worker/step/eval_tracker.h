// SPDX-License-Identifier: Apache-2.0
// What an evaluation decides: whether it is the best so far, and whether the run ends early. Every
// rank computes it from the same numbers and the same state, so all decide alike; the state goes
// with the weights, so a healed or resumed run decides as the undisturbed one.
//
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_STEP_EVAL_TRACKER_H_
#define LOCKSTEP_WORKER_STEP_EVAL_TRACKER_H_

#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// The state after `eval`. An evaluation of a step that has been counted changes nothing, so that
// one may be done again.
engine::Tracking TrackEval(const Train& train, const EvalResult& eval,
                           const engine::Tracking& before);

// Returns `tracking`, of a run with the section `before`, as one with `train` goes on with it: what
// is the best by another metric is none by this one, nor where none is kept, nor where `other_data`
// was evaluated.
engine::Tracking GoOnTracking(const Train& train, const Train& before, bool other_data,
                              const engine::Tracking& tracking);

// Returns whether the run ends with the newest evaluation.
bool StopsEarly(const Train& train, const engine::Tracking& tracking);

// Returns whether model/best.safetensors is to hold the averaged weights.
bool BestIsOfAverage(const Train& train);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_EVAL_TRACKER_H_
