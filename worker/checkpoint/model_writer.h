// SPDX-License-Identifier: Apache-2.0
// The trained model as files that the ecosystem reads: model.safetensors (parameters under their
// usual names) and config.json (what the model is). The bytes depend on the job and the state
// alone. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_MODEL_WRITER_H_
#define LOCKSTEP_WORKER_CHECKPOINT_MODEL_WRITER_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

struct WrittenModel {
  std::string path;    // of model.safetensors
  std::string sha256;  // of its bytes
};

// Writes the weights alone to `path`, under the parameters' names. Returns the sha256. `go_on`, as
// in WriteSafetensors, may be empty. Blocks until the file is durable. REQUIRES: kAverage only when
// the plan has averages. Errors: those of the file system, naming the file; Cancelled.
absl::StatusOr<std::string> WriteWeights(const std::string& path, const engine::Plan& plan,
                                         const void* state, engine::Weights weights,
                                         const std::function<bool()>& go_on);

// The sha256 of the file that WriteWeights would write. `go_on` is asked as there. Errors:
// Cancelled.
absl::StatusOr<std::string> HashWeights(const engine::Plan& plan, const void* state,
                                        engine::Weights weights,
                                        const std::function<bool()>& go_on);

// Removes from the folder `dir` of a run's model the weights of another run: averages or best ones,
// when this one has none. What cannot be removed is said.
void RemoveOldWeights(const std::string& dir, bool has_average, bool has_best);

// Writes into `dir` (made if it is not there). `inputs`: what the training split's files say of
// them (data::Dataset::origin). Blocks until all files are durable:
// model.safetensors, config.json, and ema.safetensors where there are averages. `go_on` as in
// WriteWeights. Errors: those of the file system, naming the file; Cancelled.
absl::StatusOr<WrittenModel> WriteModel(const std::string& dir, const JobSpec& job,
                                        const engine::Plan& plan, const void* state,
                                        const data::InputOrigin& inputs,
                                        const std::function<bool()>& go_on = nullptr);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_MODEL_WRITER_H_
