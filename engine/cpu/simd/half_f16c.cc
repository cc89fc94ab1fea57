// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mf16c. The conversions of F16C know subnormal numbers whatever the
// processor's flush-to-zero says.
#include <immintrin.h>

#define LS_HALF_TABLE kF16cHalfKernels
#define LS_HALF_LANES 8
#define LS_HALF_WIDEN_F16(to, from) \
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))
#define LS_HALF_NARROW_F16(to, from)               \
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), \
                   _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT))
#include "engine/cpu/simd/half_kernels.inc"
