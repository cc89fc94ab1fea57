// SPDX-License-Identifier: Apache-2.0
// Batches as every executor takes them: what their integers may be, and the made batch of the
// device check. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_ENGINE_EXEC_BATCHES_H_
#define LOCKSTEP_ENGINE_EXEC_BATCHES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace lockstep::engine {

// Errors: DataLoss when an integer of the first `samples` samples is not below its field's limit.
absl::Status CheckIntegers(const TrainSpec& spec, Fields fields, int64_t samples);

// A made micro-batch: fp32 uniform in [-1, 1), integers spread over [0, limit).
class MadeBatch {
 public:
  // Errors: ResourceExhausted.
  static absl::StatusOr<MadeBatch> Make(const TrainSpec& spec);
  Fields fields() const { return fields_; }

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  std::vector<std::unique_ptr<std::byte[], Free>> memory_;
  std::vector<const void*> fields_;
};

// Hex, of a gradient vector's bits: what workers compare before the first step. Makes one NaN of
// all of them first, since which one an operation gives is not defined (docs/same_bits.md): that of
// x86, so that the hash is that of the bits as they are where only such ones were made.
std::string HashOfGradients(float* gradients, int64_t count);

// Where the gradient vector has to be cleared: the gaps between gradients and, last, all of the
// tail, as [begin, end) of elements.
struct GradientLayout;
std::vector<std::pair<int64_t, int64_t>> GapsOf(const GradientLayout& layout);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_BATCHES_H_
