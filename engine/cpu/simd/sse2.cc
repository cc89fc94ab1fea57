// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#define LS_SIMD_TABLE kSse2Kernels
#define LS_SIMD_LANES 4
#define LS_SIMD_ROWS 4
#define LS_SIMD_SPLAT(x) _mm_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((a) * (b) + (c))
#define LS_SIMD_FMA_TO(sum, a, b) ((sum) = LS_SIMD_FMA(a, b, sum))
#include "engine/cpu/simd/simd_kernels.inc"
