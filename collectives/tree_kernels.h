// SPDX-License-Identifier: Apache-2.0
// The vectorised additions of tree_sum.h, one variant for each instruction set. All variants
// compute the same bits: every element sees the same additions. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_TREE_KERNELS_H_
#define LOCKSTEP_COLLECTIVES_TREE_KERNELS_H_

#include <cstdint>
#include <vector>

namespace lockstep {

// `out` may be one of the inputs, but not overlap them otherwise.
struct TreeKernels {
  const char* name;
  // out = a + b
  void (*add2)(const float* a, const float* b, float* out, int64_t count);
  // out = (a + b) + (c + d)
  void (*add4)(const float* a, const float* b, const float* c, const float* d, float* out,
               int64_t count);
  // out = bf16(a + b), to nearest even; a NaN stays one.
  void (*add2_bf16)(const float* a, const float* b, float* out, int64_t count);
  // out = bf16(bf16(a + b) + bf16(c + d))
  void (*add4_bf16)(const float* a, const float* b, const float* c, const float* d, float* out,
                    int64_t count);
  // out = bf16(a)
  void (*round_bf16)(const float* a, float* out, int64_t count);
};

// The widest variant that this machine runs; chosen once.
const TreeKernels& BestTreeKernels();
// Every variant that this machine runs, the portable one first.
std::vector<TreeKernels> AllTreeKernels();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TREE_KERNELS_H_
