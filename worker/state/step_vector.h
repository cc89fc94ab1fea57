// SPDX-License-Identifier: Apache-2.0
// The vector that a step reduces, wherever it lies: the plan's gradients, then the step header. On
// the host it is the transport's memory; with NCCL it is the GPU's, and the header is carried there
// and back.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STATE_STEP_VECTOR_H_
#define LOCKSTEP_WORKER_STATE_STEP_VECTOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/vector_memory.h"
#include "engine/engine.h"
#include "worker/control/step_header.h"

namespace lockstep::worker {

// A plan's buckets as a transport that reduces early takes them (Communicator::BeginPart):
// neighbours together, so that there are few transfers and large ones, about kMostParts at most.
std::vector<ElementRange> ReductionParts(absl::Span<const engine::Bucket> buckets);
inline constexpr int64_t kMostParts = 16;

class StepVector {
 public:
  // Of a job with `shards` shards and a plan with `gradients` floats. `memory` outlives this.
  StepVector(int shards, int64_t gradients, VectorMemory* memory);

  VectorMemory* memory() const { return memory_; }
  // Floats of the whole vector.
  int64_t count() const { return gradients_ + static_cast<int64_t>(header_.size()); }

  // Room for `buffers` vectors. Errors: ResourceExhausted.
  absl::StatusOr<std::vector<float*>> Reserve(int buffers);

  // Writes the header's part of the leaf of `shard`, behind its gradients. Errors: those of the
  // memory.
  absl::Status WriteHeader(int shard, uint64_t ids_hash, const StepHeader::Wishes& wishes,
                           float* leaf);
  // Reads the header of a reduced vector. Errors: as above.
  absl::Status ReadHeader(absl::Span<const Slice> reduced, StepHeader::Contents* contents);

  // `executor`'s DeviceHash with gradients on the host: in `leaf`, if that is there.
  absl::StatusOr<std::string> DeviceHash(engine::Training* executor, float* leaf) const;

 private:
  const int shards_;
  const int64_t gradients_;
  VectorMemory* const memory_;
  std::vector<float> header_;  // on its way
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_STEP_VECTOR_H_
