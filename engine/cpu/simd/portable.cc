// SPDX-License-Identifier: Apache-2.0
// Plain vectors, for any CPU that fuses a multiplication with an addition. On x86-64 compiled with
// -mavx2 -mfma.
#include "engine/cpu/simd/portable.inc"

#define LS_SIMD_TABLE kPortableKernels
#define LS_SIMD_ROW_TABLE kPortableRowKernels
#include "engine/cpu/simd/simd_kernels.inc"
// After the kernels whose vector types it uses.
#include "engine/cpu/simd/row_kernels.inc"

#define LS_SIMD_OPTIM_TABLE kPortableOptimKernels
#include "engine/cpu/simd/optim_kernels.inc"
