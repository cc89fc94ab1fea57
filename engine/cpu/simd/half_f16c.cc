// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mf16c. The conversions of F16C know subnormal numbers whatever the
// processor's flush-to-zero says.
#include <immintrin.h>

#include <cstdint>

namespace lockstep::engine::simd {
namespace {

// The bits of numbers, not NaN, to the low half of each word: RoundedToBf16.
inline __m256i RoundedNumbers(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(up, odd), 16);
}

inline bool NarrowNumbers(uint16_t* to, const float* from) {
  const __m256 low = _mm256_loadu_ps(from), high = _mm256_loadu_ps(from + 8);
  // Packing goes by halves of the vectors: the quarters are brought into order.
  const __m256i packed = _mm256_packus_epi32(RoundedNumbers(low), RoundedNumbers(high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
  return _mm256_movemask_ps(_mm256_cmp_ps(low, high, _CMP_UNORD_Q)) == 0;
}

}  // namespace
}  // namespace lockstep::engine::simd

#define LS_HALF_TABLE kF16cHalfKernels
#define LS_HALF_LANES 8
#define LS_HALF_WIDEN_F16(to, from) \
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))
#define LS_HALF_NARROW_F16(to, from)               \
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), \
                   _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT))
#define LS_HALF_NARROW_BF16(to, from) NarrowNumbers(to, from)
#include "engine/cpu/simd/half_kernels.inc"
