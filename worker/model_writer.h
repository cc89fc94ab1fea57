// SPDX-License-Identifier: Apache-2.0
// The trained model as files that the ecosystem reads: model.safetensors (parameters under their
// usual names) and config.json (what the model is). The bytes depend on the job and the state
// alone. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_MODEL_WRITER_H_
#define LOCKSTEP_WORKER_MODEL_WRITER_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

struct WrittenModel {
  std::string path;    // of model.safetensors
  std::string sha256;  // of its bytes
};

// Writes into `dir` (made if it is not there). Blocks until both files are durable. Errors: those
// of the file system, naming the file.
absl::StatusOr<WrittenModel> WriteModel(const std::string& dir, const JobSpec& job,
                                        const engine::Plan& plan, const void* state);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_MODEL_WRITER_H_
