// SPDX-License-Identifier: Apache-2.0
// As engine/cpu/simd/avx512.cc.
#include "tests/unit/engine/lowered_avx512.inc"

#define LS_SIMD_TABLE kLoweredKernels
#define LS_SIMD_ROW_TABLE kLoweredRowKernels
#include "engine/cpu/simd/simd_kernels.inc"
// After the kernels whose vector types it uses.
#include "engine/cpu/simd/row_kernels.inc"

#define LS_SIMD_OPTIM_TABLE kLoweredOptimKernels
#include "engine/cpu/simd/optim_kernels.inc"
