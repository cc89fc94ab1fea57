// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/simd/half_kernels.h"

#include <algorithm>
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
  // Subnormal: in units of 2^-24, behind the point are 24 bits and more, of which 31 count.
  const int shift = 126 - static_cast<int>(magnitude >> 23);
  if (shift > 54) return static_cast<uint16_t>(sign);  // below 2^-31 of a unit
  const int bits_used = std::min(shift, 31);
  const uint64_t significand = ((magnitude & 0x7fffff) | 0x800000) >> (shift - bits_used);
  const uint64_t mask = (uint64_t{1} << bits_used) - 1;
  return static_cast<uint16_t>(sign | (significand + (word & mask)) >> bits_used);
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
