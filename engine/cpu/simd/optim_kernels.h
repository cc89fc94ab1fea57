// SPDX-License-Identifier: Apache-2.0
// The innermost loops of the optimizers and of norms, compiled once for each instruction set from
// optim_kernels.inc. All but sum_squares are elementwise with the same arithmetic for every
// element, so a range may be cut anywhere. Thread-safety: pure functions on disjoint memory.
#ifndef LOCKSTEP_ENGINE_CPU_SIMD_OPTIM_KERNELS_H_
#define LOCKSTEP_ENGINE_CPU_SIMD_OPTIM_KERNELS_H_

#include <cstdint>

#include "engine/cpu/isa.h"

namespace lockstep::engine {

// Partial sums of a norm in fp64: element i of a block is added to lane i mod 16, so a block may be
// summed in pieces that begin at multiples of 16, on any instruction set, with the same bits.
struct NormLanes {
  double lane[16] = {};
  // The lanes, added in order.
  double Sum() const {
    double sum = 0;
    for (const double x : lane) sum += x;
    return sum;
  }
};

// See optim/adam.h and optim/lamb.h for the formulas.
struct AdamArgs {
  float scale = 1;  // of the gradient
  float l2 = 0;     // g += l2 w
  float keep = 1;   // w *= keep before the step
  float rate1 = 0;  // 1 - beta1
  float beta2 = 0;
  float rate2 = 0;        // 1 - beta2
  float correction1 = 1;  // 1 / (1 - beta1^t)
  float correction2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float lr = 0;
  float weight_decay = 0;  // LAMB's, inside the direction
};

struct OptimKernels {
  // lanes[i mod 16] += x[i]^2.
  void (*sum_squares)(const float* x, int64_t n, NormLanes* lanes);
  // One step of Adam or AdamW.
  void (*adam)(const AdamArgs& args, const float* gradient, int64_t n, float* m, float* v,
               float* w);
  // LAMB's moments, and the squares of w and of the direction added to the lanes.
  void (*lamb_measure)(const AdamArgs& args, const float* gradient, int64_t n, float* m, float* v,
                       const float* w, NormLanes* w_lanes, NormLanes* direction_lanes);
  // w -= step x direction, the direction made again from the moments.
  void (*lamb_move)(const AdamArgs& args, float step, int64_t n, const float* m, const float* v,
                    float* w);
  // buffer += rate (scale g - buffer); direction = buffer, or with nesterov
  // buffer + rate (scale g - buffer).
  void (*muon_direction)(float scale, float rate, bool nesterov, const float* gradient, int64_t n,
                         float* buffer, float* direction);
  // w = keep w - step x.
  void (*move)(float keep, float step, const float* x, int64_t n, float* w);
  // average += rate (w - average).
  void (*average)(float rate, const float* w, int64_t n, float* average);
};

// The table of an instruction set.
const OptimKernels& OptimKernelsFor(Isa isa);

namespace simd {
extern const OptimKernels kPortableOptimKernels;
extern const OptimKernels kAvx2OptimKernels;
extern const OptimKernels kAvx512OptimKernels;
}  // namespace simd

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_SIMD_OPTIM_KERNELS_H_
