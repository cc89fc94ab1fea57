// SPDX-License-Identifier: Apache-2.0
#define LS_SIMD_TABLE kAvx512Image
#define LS_SIMD_LANES 16
#include "engine/cpu/image/image_kernels.inc"
