// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#define LS_SIMD_TABLE kSse2Image
#define LS_SIMD_LANES 4
#define LS_SIMD_SPLAT(x) _mm_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((a) * (b) + (c))
#include "engine/cpu/image/image_kernels.inc"
