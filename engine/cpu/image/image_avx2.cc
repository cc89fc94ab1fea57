// SPDX-License-Identifier: Apache-2.0
#define LS_SIMD_TABLE kAvx2Image
#define LS_SIMD_LANES 8
#include "engine/cpu/image/image_kernels.inc"
