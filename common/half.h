// SPDX-License-Identifier: Apache-2.0
// bfloat16 and IEEE float16 as storage: exact to fp32, back rounded to nearest even.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_HALF_H_
#define LOCKSTEP_COMMON_HALF_H_

#include <bit>
#include <cstdint>

namespace lockstep {

struct BFloat16 {
  uint16_t bits;
  float ToFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static BFloat16 FromFloat(float value) {
    uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffff) > 0x7f800000) {  // NaN: kept quiet
      return {static_cast<uint16_t>((word >> 16) | 0x40)};
    }
    word += 0x7fff + ((word >> 16) & 1);
    return {static_cast<uint16_t>(word >> 16)};
  }
};

struct Float16 {
  uint16_t bits;
  float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f;
    const uint32_t fraction = bits & 0x3ff;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0) return std::bit_cast<float>(sign);
    // Subnormal: fraction * 2^-24, normal in fp32 (built from bits: flush-to-zero cannot touch it).
    const int shift = std::countl_zero(fraction) - 21;
    return std::bit_cast<float>(sign | static_cast<uint32_t>(113 - shift) << 23 |
                                (fraction << (shift + 13) & 0x7fffff));
  }
  static Float16 FromFloat(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000);
    const uint32_t magnitude = word & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to inf
    if (magnitude >= 0x38800000) {                                               // normal
      const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
      return {static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13)};
    }
    if (magnitude < 0x33000000) return {sign};  // below half of the smallest subnormal
    // Subnormal: the significand, shifted right by what the exponent is short of.
    const int shift = 126 - static_cast<int>(magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t half = 1u << (shift - 1);
    const uint32_t rest = significand & ((half << 1) - 1);
    uint32_t result = significand >> shift;
    if (rest > half || (rest == half && (result & 1) != 0)) ++result;
    return {static_cast<uint16_t>(sign | result)};
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_HALF_H_
