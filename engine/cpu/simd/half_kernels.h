// SPDX-License-Identifier: Apache-2.0
// Conversions between fp32 and the 16-bit formats, and what is done to bf16 in passing, compiled
// once for each instruction set from half_kernels.inc. Widening is exact; narrowing rounds to
// nearest, ties to even, as common/half.h does, and gives the same numbers on every instruction set
// (NaN stays NaN). Thread-safety: pure functions on disjoint memory.
#ifndef LOCKSTEP_ENGINE_CPU_SIMD_HALF_KERNELS_H_
#define LOCKSTEP_ENGINE_CPU_SIMD_HALF_KERNELS_H_

#include <cstdint>

#include "engine/cpu/isa.h"
#include "engine/graph/types.h"

namespace lockstep::engine {

struct HalfKernels {
  // y[i] = x[i] for i < n; no overlap.
  void (*widen_bf16)(const uint16_t* x, int64_t n, float* y);
  void (*narrow_bf16)(const float* x, int64_t n, uint16_t* y);
  void (*widen_f16)(const uint16_t* x, int64_t n, float* y);
  void (*narrow_f16)(const float* x, int64_t n, uint16_t* y);

  // y[i] = a[i] + b[i], rounded once, and dx[i] = y[i] > 0 ? dy[i] : 0, of bf16. The result may be
  // one of the operands.
  void (*add_bf16)(const uint16_t* a, const uint16_t* b, int64_t n, uint16_t* y);
  void (*relu_backward_bf16)(const uint16_t* dy, const uint16_t* y, int64_t n, uint16_t* dx);

  // The conversions for a type that is known at run time. REQUIRES: IsHalf(type).
  void Widen(DType type, const uint16_t* x, int64_t n, float* y) const {
    (type == DType::kBF16 ? widen_bf16 : widen_f16)(x, n, y);
  }
  // And back. REQUIRES: IsHalf(type).
  void Narrow(DType type, const float* x, int64_t n, uint16_t* y) const {
    (type == DType::kBF16 ? narrow_bf16 : narrow_f16)(x, n, y);
  }
};

// The kernels for `isa`. REQUIRES: this CPU has it.
const HalfKernels& HalfKernelsFor(Isa isa);

// Narrows with stochastic rounding: each value becomes one of its two neighbours with the
// probability that makes the mean exact to 2^-31 of their distance, decided by the low bits of
// words[i]. Values that the
// format has stay as they are; what is beyond its largest value, and NaN, as by Narrow. Scalar, and
// equal everywhere. REQUIRES: IsHalf(type).
void NarrowStochastically(DType type, const float* x, const uint32_t* words, int64_t n,
                          uint16_t* y);

namespace simd {
extern const HalfKernels kPortableHalfKernels;
extern const HalfKernels kF16cHalfKernels;
extern const HalfKernels kAvx512HalfKernels;
}  // namespace simd

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_SIMD_HALF_KERNELS_H_
