// SPDX-License-Identifier: Apache-2.0
// What the NCCL transport needs of a GPU besides NCCL: memory, and a queue (a stream) on which
// copies, additions and NCCL's own work follow each other. The worker makes it from the engine's
// runtime; tests from a thread. Everything but what says so returns before it is done.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_QUEUE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

class GpuQueue {
 public:
  virtual ~GpuQueue() = default;

  // "GPU-..." or "MIG-...": ranks with the same one share it.
  virtual std::string uuid() const = 0;
  // Returns what NCCL takes for a stream.
  virtual void* stream() const = 0;
  // Returns whether `data` lies in memory that this GPU has given out (not NCCL).
  virtual bool Holds(const void* data) const = 0;

  // Memory of the GPU, 256-byte aligned, until Release. Errors: ResourceExhausted with `what`.
  virtual absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) = 0;
  // Blocks until the queue is done with it.
  virtual void Release(void* memory) = 0;
  // For a GPU whose work does not end: from here on nothing here waits for it or gives memory back,
  // and whatever can fail does, with Internal that says so. Its process is to end.
  virtual void Abandon() = 0;

  // Queues. Either side may be the host's memory, which stays as it is until it is done.
  // Errors, here and below: Internal of the device.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes) = 0;
  // All bytes become 0.
  virtual absl::Status Clear(void* memory, size_t bytes) = 0;
  // out[i] = a[i] + b[i], one float addition that takes subnormals for 0 as workers do; `out` may
  // be `a` or `b`.
  virtual absl::Status Add(const float* a, const float* b, float* out, int64_t count) = 0;

  // Remembers this place of the queue.
  virtual absl::Status Mark() = 0;
  // Returns whether everything before the last Mark is done. Does not block.
  virtual absl::StatusOr<bool> Reached() = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_QUEUE_H_
