// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx512f -mavx512dq -mavx2 -mfma.
#include <immintrin.h>

#define LS_SIMD_TABLE kAvx512Kernels
#define LS_SIMD_LANES 16
#define LS_SIMD_ROWS 12
#define LS_SIMD_SPLAT(x) _mm512_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((V)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
// Names the form whose sum keeps its register: left alone, GCC 12 rotates the sums through one
// register too many and spills in the innermost loop.
#define LS_SIMD_FMA_TO(sum, a, b) asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#include "engine/cpu/simd/simd_kernels.inc"
