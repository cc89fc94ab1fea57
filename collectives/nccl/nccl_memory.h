// SPDX-License-Identifier: Apache-2.0
// The GPU's memory of the NCCL transport: vectors that are reduced (from ncclMemAlloc where there
// is such, so that they can be registered), and two buffers that the collectives share, which grow
// as needed. Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_MEMORY_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_MEMORY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/nccl/gpu_queue.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/vector_memory.h"

namespace lockstep {

// Floats of one rank's slice that are exchanged and added at a time, if nothing else is said.
inline constexpr int64_t kNcclPiece = 4 << 20;

// Returns for how many floats of NcclMemory::Staging the sum of `summands` vectors of `count`
// floats asks, in pieces of `piece` floats of each of `world` slices. Of one vector there is no
// sum.
int64_t StagingFloats(size_t summands, int world, int64_t count, int64_t piece);

// Returns what NcclMemory takes for `vectors` vectors of `count` floats, for what they are reduced
// to, and for `staging` floats.
size_t NcclMemoryBytes(int vectors, int64_t count, int64_t staging);

class NcclMemory : public VectorMemory {
 public:
  // `library` may be null; both outlive this. There is room for `staging` floats, of Staging, with
  // the first vector.
  NcclMemory(const NcclLibrary* library, GpuQueue* queue, int64_t staging = 0)
      : library_(library), queue_(queue), least_staging_(staging) {}
  // REQUIRES: no communicator uses it.
  ~NcclMemory() override;

  absl::StatusOr<float*> Allocate(int64_t count, const std::string& what) override;
  bool on_host() const override { return false; }
  absl::Status Add(float* a, const float* b, int64_t count) override;
  // Blocks until the queue is empty.
  absl::Status Wait() override;
  absl::Status Write(float* to, const float* from, int64_t count) override;
  absl::Status Read(float* to, const float* from, int64_t count) override;

  // Room for `count` floats for the result of a reduction, whose contents stay until the next call.
  // Errors: ResourceExhausted.
  absl::StatusOr<float*> Result(int64_t count);
  // The same for what is received and added.
  absl::StatusOr<float*> Staging(int64_t count);

  // Returns whether `data` lies in the GPU's memory.
  bool Holds(const void* data) const;
  GpuQueue* queue() const { return queue_; }

  // The vectors and their bytes, in the order of Allocate.
  struct Vector {
    void* memory = nullptr;
    size_t bytes = 0;  // a multiple of the alignment of windows
    bool of_nccl = false;
  };
  const std::vector<Vector>& vectors() const { return vectors_; }
  // All that is allocated.
  size_t bytes() const;

 private:
  struct Buffer {
    float* data = nullptr;
    int64_t count = 0;
  };
  absl::StatusOr<float*> Grow(Buffer* buffer, int64_t count, const std::string& what);

  const NcclLibrary* const library_;
  GpuQueue* const queue_;
  const int64_t least_staging_;
  std::vector<Vector> vectors_;
  Buffer result_;
  Buffer staging_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_MEMORY_H_
