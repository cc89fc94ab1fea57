// SPDX-License-Identifier: Apache-2.0
// Arguments of the kernels on rows and columns of matrices, as types.h. Thread-safety: values.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ROW_TYPES_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ROW_TYPES_H_

#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

// out[columns] (+)= sum over rows. `partial` has kColumnSumParts * columns floats.
inline constexpr int64_t kColumnSumParts = 64;
struct ColumnSumArgs {
  View x;
  float* out = nullptr;
  float* partial = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  bool adds = false;
};

// With `branch` the rows that are normalised are x + branch, or x + what dropout leaves of the
// branch; they go to `sum`, rounded to its type before they are normalised. With `residual_gamma`
// the normalisation of x, in fp32, stands for x there. `rounded` gets y in another type too;
// without `y` that alone is written.
struct LayerNormArgs {
  View x;
  View residual_gamma;
  View residual_beta;
  View branch;
  View sum;
  Drop drop;
  View gamma;
  View beta;
  View y;
  View rounded;
  float* mean = nullptr;
  float* rstd = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  float eps = 0;
  float residual_eps = 0;
};
// `rounded` gets dx in another type too, or what dropout leaves of it.
struct LayerNormBackwardInputArgs {
  View dy;
  View x;
  View gamma;
  View mean;
  View rstd;
  View residual;
  View dx;
  View rounded;
  Drop drop;  // of `rounded`
  int64_t rows = 0;
  int64_t columns = 0;
};
// The longest row that a warp keeps in registers.
inline constexpr int64_t kMostWarpColumns = 2048;
// Rows of a part of the sums over rows that are the gradients of scale and shift, and the parts: as
// many as keep a large GPU busy, but no more than are small beside what they are sums of.
constexpr int64_t LayerNormPartRows(int64_t rows) {
  constexpr int64_t kLeastRows = 16, kMostParts = 512;
  const int64_t each = (rows + kMostParts - 1) / kMostParts;
  return each < kLeastRows ? kLeastRows : each;
}
// The parts of so many rows.
constexpr int64_t LayerNormParts(int64_t rows) {
  const int64_t each = LayerNormPartRows(rows);
  return (rows + each - 1) / each;
}
// Floats of `partial`.
constexpr int64_t LayerNormPartialFloats(int64_t rows, int64_t columns) {
  const int64_t parts = LayerNormParts(rows);
  return 2 * (parts < kColumnSumParts ? kColumnSumParts : parts) * columns;
}
// `partial` has LayerNormPartialFloats.
struct LayerNormBackwardWeightArgs {
  View dy;
  View x;
  View mean;
  View rstd;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  float* partial = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  bool adds = false;
};

// Both of the same dy, x, mean and rstd. dx may be in the place of dy or the residual.
struct LayerNormBackwardArgs {
  LayerNormBackwardInputArgs input;
  LayerNormBackwardWeightArgs weight;
};

// Returns whether the loss keeps a row of logits of so many bytes for the gradient, where a
// multiprocessor has so much shared memory: two rows fit into it, so that one is summed while
// another one comes.
constexpr bool KeepsLogits(int64_t row_bytes, int64_t shared_bytes) {
  constexpr int64_t kBeside = 2048;  // the block's sums, and what the system takes of each block
  return 2 * (row_bytes + kBeside) <= shared_bytes;
}

// y = softmax(x); or, with dy, dx to y: x is then the softmax's result. Rows beyond
// kMostWarpColumns are read once where they, and those of dy, fit into so many bytes as floats.
inline constexpr int64_t kKeptRowBytes = 48 * 1024;
struct SoftmaxArgs {
  View x;
  View dy;
  View y;
  int64_t rows = 0;
  int64_t columns = 0;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ROW_TYPES_H_
