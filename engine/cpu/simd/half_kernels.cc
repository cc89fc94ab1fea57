// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/simd/half_kernels.h"

#include <bit>

#include "common/half.h"

namespace lockstep::engine {
namespace {

// The neighbours of x are those of its lowest `bits` bits set to 0 and one step above; adding a
// random number below a step and cutting off picks one of them.
uint32_t CutStochastically(uint32_t magnitude, int bits, uint32_t word) {
  const uint32_t mask = (1u << bits) - 1;
  return (magnitude + (word & mask)) >> bits;
}

uint16_t Bf16Of(float x, uint32_t word) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // From the largest finite value on there is one neighbour.
  if ((bits & 0x7fffffff) >= 0x7f7f0000) return BFloat16::FromFloat(x).bits;
  return static_cast<uint16_t>(CutStochastically(bits, 16, word));
}

uint16_t F16Of(float x, uint32_t word) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477fe000) return Float16::FromFloat(x).bits;  // the largest finite value
  if (magnitude >= 0x38800000) {
    return static_cast<uint16_t>(sign | CutStochastically(magnitude - 0x38000000, 13, word));
  }
  // Subnormal: in units of 2^-24, what is behind the point has 24 bits and more.
  const int shift = 126 - static_cast<int>(magnitude >> 23);
  if (shift > 31) return static_cast<uint16_t>(sign);  // below 2^-30 of a unit
  const uint64_t significand = (magnitude & 0x7fffff) | 0x800000;
  const uint64_t mask = (uint64_t{1} << shift) - 1;
  return static_cast<uint16_t>(sign | (significand + (word & mask)) >> shift);
}

}  // namespace

void NarrowStochastically(DType type, const float* x, const uint32_t* words, int64_t n,
                          uint16_t* y) {
  if (type == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) y[i] = Bf16Of(x[i], words[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = F16Of(x[i], words[i]);
  }
}

}  // namespace lockstep::engine
