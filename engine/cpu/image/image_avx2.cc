// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#define LS_SIMD_TABLE kAvx2Image
#define LS_SIMD_LANES 8
#define LS_SIMD_SPLAT(x) _mm256_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((V)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#include "engine/cpu/image/image_kernels.inc"
