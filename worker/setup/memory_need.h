// SPDX-License-Identifier: Apache-2.0
// The memory that a compiled job needs in each worker, known before anything runs, and the check
// against what the job may use. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_SETUP_MEMORY_NEED_H_
#define LOCKSTEP_WORKER_SETUP_MEMORY_NEED_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// Where the vectors lie that workers reduce.
enum class GradientPlace {
  kHost,  // in memory that the workers of a host share
  kGpu,   // with the GPUs, between which NCCL moves them
};

// Bytes of a worker's GPU: all that it allocates there, but what the driver and the libraries take
// themselves.
struct GpuNeed {
  size_t plan = 0;  // Plan::device_bytes
  // With GradientPlace::kGpu: partial sums, what they are reduced to, and what is received of
  // others.
  size_t vectors = 0;
  size_t total() const { return plan + vectors; }
};

// Bytes of one worker at its peak.
struct MemoryNeed {
  size_t weights = 0;
  size_t gradients = 0;    // of the shard and the partial sums that a worker may hold
  size_t optimizer = 0;    // moments and the scalars of the training state
  size_t activations = 0;  // the arena but for the workspace
  size_t workspace = 0;    // what kernels use besides, at the arena's fullest node
  size_t data = 0;         // batches that are prepared ahead, an evaluation block, what `read` is
  size_t read = 0;         // of `data`: samples in memory, of files that are not mapped
  size_t checkpoint = 0;   // the copy of the state that is written
  GpuNeed gpu;             // which is none of the rest; zeros on the CPU
  size_t total() const {
    return weights + gradients + optimizer + activations + workspace + data + checkpoint;
  }
};

// `gradient_buffers` vectors of `vector_count` floats are held in `place` at the worst deal of
// shards; `read_bytes` are those of the job's data (data::Dataset::own_bytes).
MemoryNeed MemoryNeedOf(const JobSpec& job, const engine::Plan& plan, int gradient_buffers,
                        int64_t vector_count, GradientPlace place, size_t read_bytes);

// Returns how many floats of other workers' gradients a worker receives at a time, before it adds
// them, at the worst deal of shards: what NCCL's transport has room for besides its vectors.
int64_t MostStaging(const JobSpec& job, int64_t vector_count);

// How many of the OptimizerShards of a job with sharded moments one of its workers holds at most.
int MostHeldParts(const JobSpec& job);

// The most bytes of moments that a worker of a job with sharded moments ever holds, each stretch of
// them rounded up to 64; 0: all of them.
size_t MostHeldMoments(const JobSpec& job, const engine::Plan& plan);

// Returns whether `need` is within `job`'s resources.gpu_memory (0: not checked).
bool FitsGpu(const JobSpec& job, const GpuNeed& need);

// Returns what of `job`'s resources.gpu_memory `need` leaves the plan; 0: that has no limit.
// Errors: ResourceExhausted when the vectors alone take more.
absl::StatusOr<size_t> PlanLimit(const JobSpec& job, const GpuNeed& need);

// Returns whether `need` is within `job`'s resources.memory (0: not checked).
bool FitsMemory(const JobSpec& job, const MemoryNeed& need);

// Checks whether `need` of `plan` fits `job`'s resources.memory and gpu_memory (0: not checked).
// `training` is what the same job needs without evaluations; it is not looked at where `need` fits.
// Errors: ResourceExhausted that names the need and the limit and says what would make the job fit:
// first a smaller evaluation block, where that takes more, then what training needs less with.
absl::Status CheckMemory(const JobSpec& job, const engine::Plan& plan, const MemoryNeed& need,
                         const MemoryNeed& training);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_MEMORY_NEED_H_
