// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/simd/portable.inc"

#define LS_SIMD_TABLE kPortableImage
#include "engine/cpu/image/image_kernels.inc"
