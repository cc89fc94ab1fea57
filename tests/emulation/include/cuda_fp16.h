// SPDX-License-Identifier: Apache-2.0
// The part of <cuda_fp16.h> that our kernels use.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_FP16_H_
#define LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_FP16_H_

#include "common/half.h"

using __half = lockstep::Float16;
inline __half __float2half_rn(float x) { return lockstep::Float16::FromFloat(x); }
inline float __half2float(__half x) { return x.ToFloat(); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }

#endif  // LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_FP16_H_
