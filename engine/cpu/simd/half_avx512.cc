// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx512f. Masked forms: GCC 12 warns about its own plain ones.
#include <immintrin.h>

#include <cstdint>

#include "engine/cpu/simd/round_bf16_avx512.inc"

namespace lockstep::engine::simd {
namespace {

inline bool NarrowNumbers(uint16_t* to, const float* from) {
  const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
  // Every other number of both, so that the two halves of a word lie side by side.
  const __m512i step = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512 low = _mm512_permutex2var_ps(a, step, b);
  const __m512 high = _mm512_permutex2var_ps(a, _mm512_or_epi32(step, _mm512_set1_epi32(1)), b);
  constexpr int kFirstOrThird = 0xEC;  // (a & c) | b
  const __m512i words = _mm512_ternarylogic_epi32(
      NearestNumbers(high), _mm512_maskz_srli_epi32(0xFFFF, NearestNumbers(low), 16),
      _mm512_set1_epi32(static_cast<int>(0xFFFF0000)), kFirstOrThird);
  _mm512_storeu_si512(to, words);
  return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) == 0;
}

}  // namespace
}  // namespace lockstep::engine::simd

#define LS_HALF_TABLE kAvx512HalfKernels
#define LS_HALF_LANES 16
#define LS_HALF_WIDEN_F16(to, from)           \
  _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps( \
                           0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))))
#define LS_HALF_NARROW_F16(to, from)                                       \
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),                      \
                      _mm512_maskz_cvtps_ph(0xFFFF, _mm512_loadu_ps(from), \
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define LS_HALF_NARROW_BF16(to, from) NarrowNumbers(to, from)
#include "engine/cpu/simd/half_kernels.inc"
