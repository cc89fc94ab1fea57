// SPDX-License-Identifier: Apache-2.0
// A model that a run has saved, built again for evaluation and prediction alone: weights, one
// program, no gradients and no optimizer state.
// Thread-safety: confined to one thread.
#ifndef LOCKSTEP_WORKER_COMMANDS_SAVED_MODEL_H_
#define LOCKSTEP_WORKER_COMMANDS_SAVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "worker/setup/block_reader.h"

namespace lockstep::worker {

// Zeroed, page-aligned memory; null when there is none.
using AlignedMemory = std::unique_ptr<void, void (*)(void*)>;
AlignedMemory AllocateAligned(size_t bytes);

class SavedModel {
 public:
  // `path` is a folder with model.safetensors and config.json, or the first of them. `block`
  // samples are run at once (0: as many as the training evaluated); `decode` prepares generation
  // too. `device` is "cpu", "cuda" or "cuda:N"; empty: the CPU. Errors: NotFound, DataLoss (a
  // damaged file, tensors that are not those of the model), InvalidArgument, ResourceExhausted,
  // FailedPrecondition without that GPU.
  static absl::StatusOr<std::unique_ptr<SavedModel>> Open(const std::string& path, int threads,
                                                          const std::string& device, int64_t block,
                                                          bool decode = false);

  const ModelConfig& config() const { return config_; }
  const engine::Plan& plan() const { return *plan_; }
  // Runs the model; owned by this.
  engine::Executor* executor() { return executor_.get(); }

  // Errors: InvalidArgument when samples of `dataset` are not what the model takes, or columns of a
  // table have other names than those it learnt from, or another order.
  absl::Status CheckFits(const data::Dataset& dataset) const;
  // Returns whether it learnt from files of numbers, so that bytes are numbers too, and not pixels
  // that are divided by 255.
  bool takes_raw_bytes() const;

  // The samples of the test split of `job`'s data, null: of those that the model learnt from; no
  // file of a training split is needed. Relative paths are meant from the job's workdir, which the
  // process enters; empty, or not there: from where it is. Errors: those of data::Open;
  // InvalidArgument when the model learnt from bytes, which are divided by 255, and these are none.
  absl::StatusOr<std::unique_ptr<data::Dataset>> OpenTestSplit(const JobSpec* job) const;

  // Runs all of `dataset` block by block. Errors: InvalidArgument (CheckFits), ResourceExhausted,
  // those of the data and of `run`.
  absl::Status ForEachBlock(const data::Dataset& dataset, const BlockReader::Run& run);

 private:
  SavedModel() : state_(nullptr, std::free), arena_(nullptr, std::free) {}
  absl::Status LoadWeights(const std::string& file);

  ModelConfig config_;
  std::shared_ptr<const engine::Plan> plan_;
  AlignedMemory state_;
  AlignedMemory arena_;
  std::unique_ptr<engine::Executor> executor_;
};

// Checks what a model says of one sample or token. Errors: DataLoss when an output is not finite:
// it says nothing then.
absl::Status CheckFinite(absl::Span<const float> outputs);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_SAVED_MODEL_H_
