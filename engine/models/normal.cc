// SPDX-License-Identifier: Apache-2.0
#include "engine/models/normal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/philox.h"
#include "engine/math/series.h"

// Loops over kBlock counters whose bodies have no branch, for the compiler's vectors. Products and
// sums are never contracted (the build says -ffp-contract=off), so vectors of any width give the
// same bits.
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep::engine {
namespace {

constexpr int kBlock = 64;

template <typename To, typename From>
LOCKSTEP_INLINE To BitsOf(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The double of an integer below 2^52, without a conversion that SSE2 and AVX2 lack.
LOCKSTEP_INLINE double FromInteger(uint64_t value) {
  return BitsOf<double>(value | 0x4330000000000000) - 0x1.0p52;
}

// words[w][c]: word w of counter `first` + c.
LOCKSTEP_INLINE void MakeWords(uint64_t key, uint64_t first, uint32_t words[4][kBlock]) {
  for (int c = 0; c < kBlock; ++c) {
    const uint64_t counter = first + static_cast<uint64_t>(c);
    const auto made = Philox4x32(
        {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, key);
    for (size_t w = 0; w < 4; ++w) words[w][c] = made[w];
  }
}

// log((word + 1/2) / 2^32), with 2 word + 1 = 2^e m, m in [sqrt(1/2), sqrt(2)).
LOCKSTEP_INLINE double LogOfWord(uint32_t word) {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const uint64_t bits = BitsOf<uint64_t>(FromInteger(2 * static_cast<uint64_t>(word) + 1));
  const uint64_t exponent = (bits - kSqrtHalf) >> 52;  // 0 to 33
  const double f = BitsOf<double>(bits - (exponent << 52)) - 1;
  return (FromInteger(exponent) - 33) * M_LN2 + series::Log1p(f);
}

struct Direction {
  double cosine, sine;
};

// Cosine and sine of 2 pi word / 2^32: the nearest quarter turn, and what is left, at most an
// eighth of a turn.
LOCKSTEP_INLINE Direction DirectionOf(uint32_t word) {
  const uint32_t quarter = (word + (1u << 29)) >> 30;  // 0 to 3: four wraps around to 0
  // word - quarter 2^30 is in [-2^29, 2^29); 2^29 is added, and subtracted as a double.
  const double left = FromInteger(word - (quarter << 30) + (1u << 29)) - 0x1.0p29;
  const double x = left * (2 * M_PI * 0x1.0p-32);
  const double sine = series::Sine(x), cosine = series::Cosine(x);
  // A quarter turn more makes (c, s) into (-s, c).
  const uint64_t odd = 0 - static_cast<uint64_t>(quarter & 1);
  const uint64_t c = BitsOf<uint64_t>(cosine), s = BitsOf<uint64_t>(sine);
  const uint64_t negative_c = static_cast<uint64_t>((quarter + 1) >> 1 & 1) << 63;
  const uint64_t negative_s = static_cast<uint64_t>(quarter >> 1 & 1) << 63;
  return {BitsOf<double>(((c & ~odd) | (s & odd)) ^ negative_c),
          BitsOf<double>(((s & ~odd) | (c & odd)) ^ negative_s)};
}

LOCKSTEP_INLINE void FillBlock(uint64_t key, uint64_t first, double deviation, float* values) {
  uint32_t words[4][kBlock];
  double made[4][kBlock];
  MakeWords(key, first, words);
  for (int pair = 0; pair < 4; pair += 2) {
    for (int c = 0; c < kBlock; ++c) {
      const double radius = std::sqrt(-2 * LogOfWord(words[pair][c]));
      const Direction direction = DirectionOf(words[pair + 1][c]);
      made[pair][c] = deviation * (radius * direction.cosine);
      made[pair + 1][c] = deviation * (radius * direction.sine);
    }
  }
  for (int c = 0; c < kBlock; ++c) {
    for (int lane = 0; lane < 4; ++lane) values[4 * c + lane] = static_cast<float>(made[lane][c]);
  }
}

LOCKSTEP_INLINE void Fill(uint64_t key, double deviation, float* values, int64_t count) {
  int64_t done = 0;
  for (; done + 4 * kBlock <= count; done += 4 * kBlock) {
    FillBlock(key, static_cast<uint64_t>(done / 4), deviation, values + done);
  }
  if (done == count) return;
  float last[4 * kBlock];
  FillBlock(key, static_cast<uint64_t>(done / 4), deviation, last);
  std::copy(last, last + (count - done), values + done);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void FillAvx2(uint64_t key, double deviation, float* values,
                                              int64_t count) {
  Fill(key, deviation, values, count);
}
#endif

}  // namespace

void FillNormalPortably(uint64_t key, double deviation, float* values, int64_t count) {
  Fill(key, deviation, values, count);
}

void FillNormal(uint64_t key, double deviation, float* values, int64_t count) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return FillAvx2(key, deviation, values, count);
#endif
  FillNormalPortably(key, deviation, values, count);
}

}  // namespace lockstep::engine
