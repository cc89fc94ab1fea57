// SPDX-License-Identifier: Apache-2.0
// The part of <cuda_bf16.h> that our kernels use.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_BF16_H_
#define LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_BF16_H_

#include "common/half.h"

using __nv_bfloat16 = lockstep::BFloat16;
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return lockstep::BFloat16::FromFloat(x); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

#endif  // LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_BF16_H_
