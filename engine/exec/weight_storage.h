// SPDX-License-Identifier: Apache-2.0
// One parameter's weights as the update sees them: in fp32 where they lie, or, in the pure 16-bit
// precisions, widened into a buffer and rounded back. That rounding is stochastic: an update
// smaller than half a unit of the last place, which nearest would lose every time, is kept on
// average (S. Gupta et al., "Deep learning with limited numerical precision", 2015). It is
// addressed by (seed, parameter, update, element), so it is the same whoever does it.
// Thread-safety: thread-compatible; parts that do not overlap may be used at once.
#ifndef LOCKSTEP_ENGINE_EXEC_WEIGHT_STORAGE_H_
#define LOCKSTEP_ENGINE_EXEC_WEIGHT_STORAGE_H_

#include <cstdint>

#include "engine/cpu/isa.h"
#include "engine/graph/types.h"
#include "engine/models/model.h"

namespace lockstep::engine {

class WeightStorage {
 public:
  WeightStorage() = default;
  // `data` has the parameter's elements as `type`: kF32, kBF16 or kF16.
  WeightStorage(const ParameterSpec& parameter, uint64_t seed, DType type, void* data, Isa isa);

  bool is_fp32() const { return type_ == DType::kF32; }
  // REQUIRES: is_fp32().
  float* fp32() const;
  // Elements [at, at + count) in fp32: where they lie, or in `buffer`, which has room for them.
  float* Read(int64_t at, int64_t count, float* buffer) const;
  // Brings back what Read returned and update number `update` has changed.
  void Write(int64_t update, int64_t at, int64_t count, const float* values) const;

 private:
  DType type_ = DType::kF32;
  Isa isa_ = Isa::kPortable;
  uint64_t rounding_key_ = 0;
  void* data_ = nullptr;
};

// The first weights of a parameter, to nearest. Allocates.
void InitialiseWeights(const ParameterSpec& parameter, uint64_t seed, DType type, Isa isa,
                       void* data);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_WEIGHT_STORAGE_H_
