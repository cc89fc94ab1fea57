// SPDX-License-Identifier: Apache-2.0
// Softmax with cross-entropy over rows of logits, as the loss by itself and the one behind a linear
// layer have it. Rows run in order on one thread: their losses are one sum. Thread-safety: pure
// functions on disjoint memory.
#ifndef LOCKSTEP_ENGINE_CPU_SOFTMAX_ROWS_H_
#define LOCKSTEP_ENGINE_CPU_SOFTMAX_ROWS_H_

#include <cstdint>

#include "engine/cpu/simd/simd.h"

namespace lockstep::engine::cpu {

// Operands that a variant lacks are null.
struct SoftmaxRows {
  const float* logits = nullptr;
  const int32_t* labels = nullptr;
  const float* seed = nullptr;
  float* gradient = nullptr;
  float* loss = nullptr;
  float* count = nullptr;
  float* bias = nullptr;  // the sum over rows of the gradient, from 0
  bool add_sums = false;
  int64_t columns = 0;  // of the memory
  int64_t classes = 0;  // the first ones, which count
  double smoothing = 0;
};

struct SoftmaxSums {
  double loss = 0;
  int64_t count = 0;
};

// Adds `m` rows to *sums, which goes on from the rows before, and writes their gradient where there
// is a place for it. That may be the logits' own.
void RunSoftmaxRows(const SimdKernels& simd, const SoftmaxRows& rows, int64_t m, SoftmaxSums* sums);
// Writes or adds the sums to rows.loss and rows.count.
void WriteSoftmaxSums(const SoftmaxSums& sums, const SoftmaxRows& rows);

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_SOFTMAX_ROWS_H_
