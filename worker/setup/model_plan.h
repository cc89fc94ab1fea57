// SPDX-License-Identifier: Apache-2.0
// From the message of a job's model to the engine's struct for it. Fields are read by their names,
// which both have; only layers, which are messages of their own, are known here one by one.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_SETUP_MODEL_PLAN_H_
#define LOCKSTEP_WORKER_SETUP_MODEL_PLAN_H_

#include "absl/status/statusor.h"
#include "engine/model_spec.h"
#include "proto/job_model.pb.h"

namespace lockstep::worker {

// The model as the engine takes it. Errors: InvalidArgument when there is none.
absl::StatusOr<engine::ModelSpec> ModelSpecOf(const Model& model);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_MODEL_PLAN_H_
