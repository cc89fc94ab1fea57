// SPDX-License-Identifier: Apache-2.0
// As engine/cpu/image/image_avx512.cc.
#include "tests/unit/engine/lowered_avx512.inc"

#define LS_SIMD_TABLE kLoweredImage
#include "engine/cpu/image/image_kernels.inc"
