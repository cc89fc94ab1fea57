// SPDX-License-Identifier: Apache-2.0
// FP8 numbers with one scale for a whole tensor, as values of fp32 and as bytes. The scale is the
// power of two that brings the tensor's largest magnitude to the format's largest number or closest
// below, so applying it is exact and what is rounded fits into bfloat16. Compiled by nvcc too.
// The formats are those of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_FLOAT8_H_
#define LOCKSTEP_COMMON_FLOAT8_H_

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define LS_HOST_DEVICE __host__ __device__
#else
#define LS_HOST_DEVICE
#endif

namespace lockstep {

struct Float8Format {
  int fraction_bits = 0;
  int least_exponent = 0;  // of a normal number; subnormals have its step
  int most_exponent = 0;   // the largest number is 1.75 times 2 to it
};
inline constexpr Float8Format kE4M3 = {3, -6, 8};    // up to 448
inline constexpr Float8Format kE5M2 = {2, -14, 15};  // up to 57344

// The bits of a number.
LS_HOST_DEVICE inline uint32_t BitsOfFloat(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
// Back.
LS_HOST_DEVICE inline float FloatOfBits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// The magnitude of `x`, or 0 where it says nothing of the scale: infinities, NaN, and what is
// below the normal numbers of fp32.
LS_HOST_DEVICE inline float Float8Magnitude(float x) {
  const uint32_t bits = BitsOfFloat(x) & 0x7fffffffu;
  const uint32_t exponent = bits >> 23;
  return exponent == 0 || exponent == 255 ? 0.0f : FloatOfBits(bits);
}

// The largest e for which 2^e times `largest` is a number of the format; smaller where the
// format's smallest number, divided by 2^e, would be below fp32's normal ones; 0 for 0.
// REQUIRES: a Float8Magnitude.
LS_HOST_DEVICE inline int Float8ScaleExponent(const Float8Format& format, float largest) {
  const uint32_t bits = BitsOfFloat(largest);
  if (bits == 0) return 0;
  const int above = (bits & 0x7fffffu) > 0x600000u ? 1 : 0;  // 1.75
  const int exponent = format.most_exponent - (static_cast<int>(bits >> 23) - 127) - above;
  const int most = 126 + format.least_exponent - format.fraction_bits;
  return exponent < most ? exponent : most;
}

// `x` as 2^-scale times a number of the format: the nearest one, of two the even one. An infinity
// is NaN, as NaN is. REQUIRES: |x| is at most what the scale was made for.
LS_HOST_DEVICE inline float RoundToFloat8(const Float8Format& format, int scale, float x) {
  const uint32_t bits = BitsOfFloat(x);
  const uint32_t sign = bits & 0x80000000u;
  const int exponent = static_cast<int>(bits >> 23 & 255);
  if (exponent == 255) return FloatOfBits(sign | 0x7fc00000u);
  // Bits of the significand that are rounded away: more of them below the normal numbers.
  const int least = format.least_exponent - scale + 127;
  const int drop = 23 - format.fraction_bits + (exponent < least ? least - exponent : 0);
  if (exponent == 0 || drop > 24) return FloatOfBits(sign);
  const uint32_t significand = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t odd = significand >> drop & 1;
  const uint32_t rounded = (significand + (1u << (drop - 1)) - 1 + odd) >> drop << drop;
  if (rounded == 0) return FloatOfBits(sign);
  // Times 2^(exponent - 150), by the exponent's field.
  const uint32_t shift = static_cast<uint32_t>(exponent - 150) << 23;
  return FloatOfBits(sign | (BitsOfFloat(static_cast<float>(rounded)) + shift));
}

// The byte of `x`, which RoundToFloat8 has given for this scale or a smaller one; NaN is 0x7f.
LS_HOST_DEVICE inline uint8_t Float8Code(const Float8Format& format, int scale, float x) {
  const uint32_t bits = BitsOfFloat(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  const int exponent = static_cast<int>(bits >> 23 & 255);
  if (exponent == 255) return 0x7f;
  if (exponent == 0) return static_cast<uint8_t>(sign);
  const int own = exponent - 127 + scale - format.least_exponent + 1;
  const int drop = 23 - format.fraction_bits;
  if (own >= 1) {
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(own) << format.fraction_bits |
                                (bits & 0x7fffffu) >> drop);
  }
  const uint32_t significand = (bits & 0x7fffffu) | 0x800000u;
  return static_cast<uint8_t>(drop + 1 - own < 32 ? sign | significand >> (drop + 1 - own) : sign);
}
// 2 to a scale of Float8ScaleExponent, or to its negative.
LS_HOST_DEVICE inline float Float8Power(int exponent) {
  return FloatOfBits(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_FLOAT8_H_
