// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx512f. Masked forms: GCC 12 warns about its own plain ones.
#include <immintrin.h>

#define LS_HALF_TABLE kAvx512HalfKernels
#define LS_HALF_LANES 16
#define LS_HALF_WIDEN_F16(to, from)           \
  _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps( \
                           0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))))
#define LS_HALF_NARROW_F16(to, from)                                       \
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),                      \
                      _mm512_maskz_cvtps_ph(0xFFFF, _mm512_loadu_ps(from), \
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#include "engine/cpu/simd/half_kernels.inc"
