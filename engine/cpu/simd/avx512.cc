// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx512f -mavx512dq -mavx2 -mfma.
#include <immintrin.h>

#include "engine/cpu/simd/round_bf16_avx512.inc"

#define LS_SIMD_TABLE kAvx512Kernels
#define LS_SIMD_LANES 16
#define LS_SIMD_ROWS 12
#define LS_SIMD_SPLAT(x) _mm512_set1_ps(x)
#define LS_SIMD_FMA(a, b, c) ((V)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
// Names the form whose sum keeps its register: left alone, GCC 12 rotates the sums through one
// register too many and spills in the innermost loop.
#define LS_SIMD_FMA_TO(sum, a, b) asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
// The float at base + offset bytes + row times scale bytes in each lane.
#define LS_SIMD_SPLAT_ROW(x, base, row, scale, offset) \
  asm("vbroadcastss %c3(%1,%2," #scale "), %0"         \
      : "=v"(x)                                        \
      : "r"(base), "r"(row), "i"(offset), "m"(*(base)))
// avx512_bf16: the only instruction here that a CPU with the flags above need not have. Denormal
// values count as zero in it, and each product is added rounded.
#define LS_SIMD_DOT_TABLE kAvx512Bf16Kernels
#define LS_SIMD_DOT_TO(sum, a, b) asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#define LS_SIMD_ROW_TABLE kAvx512RowKernels
// Masked: GCC 12 warns about its own plain form.
#define LS_SIMD_MUL32(a, b) _mm512_maskz_mul_epu32(0xFF, (__m512i)(a), (__m512i)(b))
// The low halves. Left alone, GCC 12 takes three steps for it.
#define LS_SIMD_HALVES(x) _mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)(x))
#define LS_SIMD_NEAREST_BF16(x) NearestNumbersOrNan((__m512)(x))
#define LS_SIMD_ROUND_EXCHANGED(from, to) RoundExchanged(from, to)
#include "engine/cpu/simd/simd_kernels.inc"
// After the kernels whose vector types it uses.
#include "engine/cpu/simd/row_kernels.inc"

#define LS_SIMD_OPTIM_TABLE kAvx512OptimKernels
#define LS_SIMD_SQRT(x) _mm512_maskz_sqrt_ps(0xFFFF, (__m512)(x))
#include "engine/cpu/simd/optim_kernels.inc"
