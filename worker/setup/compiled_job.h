// SPDX-License-Identifier: Apache-2.0
// What a worker makes of its job before it reserves memory: the data opened, the step compiled, and
// how much of everything it needs. Thread-safety: pure functions on their arguments.
#ifndef LOCKSTEP_WORKER_SETUP_COMPILED_JOB_H_
#define LOCKSTEP_WORKER_SETUP_COMPILED_JOB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/field.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "engine/engine.h"
#include "proto/job.pb.h"
#include "worker/setup/job_plan.h"
#include "worker/setup/memory_need.h"

namespace lockstep::worker {

// Both splits of the job's data.
struct JobData {
  std::unique_ptr<data::Dataset> train;
  std::unique_ptr<data::Dataset> test;
};
// Errors: those of data::Open; InvalidArgument when the test split's samples are not laid out as
// those of the training split.
absl::StatusOr<JobData> OpenJobData(const JobSpec& job);

// Checks that samples of `has` can be read as samples of `takes`: the same fields with as many
// values in the same order ([784] may be [1, 28, 28], but [32, 32, 3] not [3, 32, 32]). Errors:
// InvalidArgument "`taker` samples of ..., but `giver` ...", with both layouts.
absl::Status CheckSamplesFit(const std::vector<FieldSpec>& takes, const std::vector<FieldSpec>& has,
                             const std::string& taker, const std::string& giver);

// A job compiled for this worker, before it has memory.
struct CompiledJob {
  JobSpec job;
  std::shared_ptr<const data::DistributedSampler> sampler;
  // Without PassOptions::keep_constants also where the job does not say so, but
  // resources.gpu_memory has no room for it.
  std::shared_ptr<const engine::Plan> plan;
  int64_t train_samples = 0;
  int64_t total_steps = 0;
  Every eval_every;
  Every save_every;
  Every verify_every;
  // The vector that is reduced: the plan's gradients, then the step header.
  int64_t vector_count = 0;
  int gradient_buffers = 0;
  // Everything that the transport's arena holds, and its reserved memory.
  size_t arena_bytes = 0;
  size_t reserved_bytes = 0;
  MemoryNeed need;
  std::vector<std::string> tuning_files;  // of a GPU: engine::Memory
  // Of arrays with a label for each token: the targets of the first samples are the tokens that
  // stand at their own places, which the model sees.
  bool targets_are_inputs = false;
  bool inputs_are_bytes = false;  // uint8 in their file, which are taken as [0, 1]
};
// Returns what of the job has no effect or looks like a mistake, a sentence each: of its schedule
// (ScheduleWarnings), of its dumps, of muon where the model has nothing for it, of labels with more
// classes than there are samples, of tokens that are their own targets, of means of bytes, of
// pictures whose channels come last. It is allowed, and seldom meant.
std::vector<std::string> WarningsOf(const CompiledJob& compiled);

// With the vectors that are reduced in `place`. Errors: InvalidArgument, also when recompute is
// auto and the memory of the job's device has no limit; ResourceExhausted when the job cannot fit
// resources.memory or gpu_memory, naming both.
absl::StatusOr<CompiledJob> CompileJob(const JobSpec& job, const JobData& data,
                                       GradientPlace place = GradientPlace::kHost);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_COMPILED_JOB_H_
