// SPDX-License-Identifier: Apache-2.0
#define LS_HALF_TABLE kPortableHalfKernels
#include "engine/cpu/simd/half_kernels.inc"
