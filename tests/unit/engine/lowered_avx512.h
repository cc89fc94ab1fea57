// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512 on a CPU without it: the same source with its 16 lanes as two vectors of
// AVX2 each, and bf16 pairs by the portable form of their instruction. What their loops do with 16
// lanes and tiles of 12 rows is thereby tested on CPUs that have AVX2; what the compiler makes of
// them for AVX-512 is not.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_LOWERED_AVX512_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_LOWERED_AVX512_H_

#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/optim_kernels.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine::simd {

// Running them REQUIRES: this CPU has AVX2, FMA and F16C.
extern const SimdKernels kLoweredKernels;
extern const RowKernels kLoweredRowKernels;
extern const OptimKernels kLoweredOptimKernels;
extern const ImageSimd kLoweredImage;
extern const HalfKernels kLoweredHalfKernels;

}  // namespace lockstep::engine::simd

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_LOWERED_AVX512_H_
