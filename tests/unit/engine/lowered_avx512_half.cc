// SPDX-License-Identifier: Apache-2.0
// As engine/cpu/simd/half_avx512.cc.
#include <immintrin.h>

#include "tests/unit/engine/lowered_avx512.h"

#define LS_HALF_TABLE kLoweredHalfKernels
#define LS_HALF_LANES 16
#define LS_HALF_WIDEN_F16(to, from)                                                         \
  for (int half = 0; half < 16; half += 8) {                                                \
    _mm256_storeu_ps(                                                                       \
        (to) + half,                                                                        \
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>((from) + half)))); \
  }
#define LS_HALF_NARROW_F16(to, from)                                                  \
  for (int half = 0; half < 16; half += 8) {                                          \
    _mm_storeu_si128(reinterpret_cast<__m128i*>((to) + half),                         \
                     _mm256_cvtps_ph(_mm256_loadu_ps((from) + half),                  \
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); \
  }
#include "engine/cpu/simd/half_kernels.inc"
