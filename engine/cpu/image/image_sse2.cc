// SPDX-License-Identifier: Apache-2.0
#define LS_SIMD_TABLE kSse2Image
#define LS_SIMD_LANES 4
#include "engine/cpu/image/image_kernels.inc"
