// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/weight_storage.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "common/philox.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/models/initialise.h"

namespace lockstep::engine {

WeightStorage::WeightStorage(const ParameterSpec& parameter, uint64_t seed, DType type, void* data,
                             Isa isa)
    : type_(type),
      isa_(isa),
      rounding_key_(SiteKey(seed, parameter.name + ".rounding")),
      data_(data) {}

float* WeightStorage::fp32() const {
  LS_CHECK(is_fp32());
  return static_cast<float*>(data_);
}

float* WeightStorage::Read(int64_t at, int64_t count, float* buffer) const {
  if (is_fp32()) return static_cast<float*>(data_) + at;
  HalfKernelsFor(isa_).Widen(type_, static_cast<const uint16_t*>(data_) + at, count, buffer);
  return buffer;
}

void WeightStorage::Write(int64_t update, int64_t at, int64_t count, const float* values) const {
  if (is_fp32()) return;
  const RandomSite site{rounding_key_, static_cast<uint32_t>(update),
                        static_cast<uint32_t>(update >> 32)};
  const RowKernels& rows = RowKernelsFor(isa_);
  uint32_t words[kRandomBlock];
  for (int64_t i = at; i < at + count;) {
    const int64_t block = i / kRandomBlock, first = i % kRandomBlock;
    const int64_t n = std::min(kRandomBlock - first, at + count - i);
    rows.random_words(site, static_cast<uint64_t>(block), words);
    NarrowStochastically(type_, values + (i - at), words + first, n,
                         static_cast<uint16_t*>(data_) + i);
    i += n;
  }
}

void InitialiseWeights(const ParameterSpec& parameter, uint64_t seed, DType type, Isa isa,
                       void* data) {
  if (!IsHalf(type)) return Initialise(parameter, seed, static_cast<float*>(data));
  std::vector<float> values(static_cast<size_t>(Elements(parameter.shape)));
  Initialise(parameter, seed, values.data());
  HalfKernelsFor(isa).Narrow(type, values.data(), static_cast<int64_t>(values.size()),
                             static_cast<uint16_t*>(data));
}

}  // namespace lockstep::engine
