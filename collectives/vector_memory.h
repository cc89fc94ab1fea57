// SPDX-License-Identifier: Apache-2.0
// The memory in which vectors of floats lie that are to be reduced, and the little that a worker
// does with them besides: it adds two, and looks at or writes a few elements. On the host this is
// the transport's arena; with NCCL it is memory of the GPU, which the host cannot touch.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_VECTOR_MEMORY_H_
#define LOCKSTEP_COLLECTIVES_VECTOR_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

class Transport;

class VectorMemory {
 public:
  virtual ~VectorMemory() = default;

  // A vector of `count` zeros for TreeReduce, 64-byte aligned, for the transport's life.
  // Errors: ResourceExhausted, naming `what`.
  virtual absl::StatusOr<float*> Allocate(int64_t count, const std::string& what) = 0;

  // Returns whether the host may read and write the vectors directly.
  virtual bool on_host() const = 0;

  // a[i] += b[i], in this memory; the bits are those of one float addition with subnormals as the
  // calling thread treats them. May return before it is done: later calls here and of the
  // transport's communicators come after it. Errors: Internal of the device.
  virtual absl::Status Add(float* a, const float* b, int64_t count) = 0;
  // Blocks until all additions are done: comes before others than this memory and the transport's
  // communicators write there, as the engine does. Errors: Internal of the device.
  virtual absl::Status Wait() = 0;

  // to[i] = from[i] with `from` anywhere on the host, or `to` there. Blocks until it is done.
  // Errors: Internal of the device.
  virtual absl::Status Write(float* to, const float* from, int64_t count) = 0;
  // As Write, the other way.
  virtual absl::Status Read(float* to, const float* from, int64_t count) = 0;
};

// Vectors in the arena of `transport`.
class HostVectors : public VectorMemory {
 public:
  // `transport` outlives this.
  explicit HostVectors(Transport* transport) : transport_(transport) {}

  absl::StatusOr<float*> Allocate(int64_t count, const std::string& what) override;
  bool on_host() const override { return true; }
  absl::Status Add(float* a, const float* b, int64_t count) override;
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::Status Write(float* to, const float* from, int64_t count) override;
  absl::Status Read(float* to, const float* from, int64_t count) override;

 private:
  Transport* const transport_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_VECTOR_MEMORY_H_
