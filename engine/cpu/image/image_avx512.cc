// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#define LS_SIMD_TABLE kAvx512Image
#define LS_SIMD_LANES 16
#define LS_SIMD_SPLAT(x) _mm512_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((V)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#include "engine/cpu/image/image_kernels.inc"
