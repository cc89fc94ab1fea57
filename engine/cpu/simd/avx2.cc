// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mfma.
#include <immintrin.h>

#define LS_SIMD_TABLE kAvx2Kernels
#define LS_SIMD_LANES 8
#define LS_SIMD_ROWS 6
#define LS_SIMD_SPLAT(x) _mm256_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((V)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
// Names the form whose sum keeps its register: left alone, GCC 12 rotates the sums through one
// register too many and spills in the innermost loop.
#define LS_SIMD_FMA_TO(sum, a, b) asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#include "engine/cpu/simd/simd_kernels.inc"
