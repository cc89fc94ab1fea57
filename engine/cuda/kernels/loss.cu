// SPDX-License-Identifier: Apache-2.0
// Softmax with cross-entropy, and what an evaluation counts. A row of logits belongs to one block;
// the rows' losses are fp64 and are added by one block in a fixed order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr double kRadix = 4096;  // kCountRadix of ops/counts.h

struct RowSums {
  float most;
  float sum;     // of exp(x - most)
  float total;   // of x, for label smoothing
  float before;  // logits that come before the label's: the larger ones, and equal ones on its left
};

// All threads of the block get the row's sums.
__device__ RowSums SumRow(const CrossEntropyArgs& args, int64_t base, int32_t label,
                          float* shared) {
  RowSums sums = {-INFINITY, 0, 0, 0};
  for (int64_t j = threadIdx.x; j < args.classes; j += kThreads) {
    sums.most = fmaxf(sums.most, Load(args.logits, base + j));
  }
  sums.most = BlockMax<kThreads>(sums.most, shared);
  const float own = args.evaluation != nullptr ? Load(args.logits, base + label) : 0;
  for (int64_t j = threadIdx.x; j < args.classes; j += kThreads) {
    const float x = Load(args.logits, base + j);
    sums.sum += expf(x - sums.most);
    sums.total += x;
    if (args.evaluation != nullptr && j != label) {
      sums.before += (j < label ? !(x < own) : !(x <= own)) ? 1.0f : 0.0f;
    }
  }
  sums.sum = BlockSum<kThreads>(sums.sum, shared);
  if (args.smoothing > 0) sums.total = BlockSum<kThreads>(sums.total, shared);
  if (args.evaluation != nullptr) {
    sums.before = BlockSum<kThreads>(sums.before, shared);
    if (!(own == own)) sums.before = static_cast<float>(args.classes);  // NaN is never the answer
  }
  return sums;
}

__global__ void __launch_bounds__(kThreads) CrossEntropyKernel(CrossEntropyArgs args) {
  __shared__ float shared[kWarps];
  const int64_t row = blockIdx.x, base = row * args.columns;
  const int32_t label = args.labels[row];
  const bool counts = label >= 0 && (args.valid_rows == nullptr || row < *args.valid_rows);
  if (!counts) {
    if (args.gradient.data != nullptr) {
      for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
        Store(args.gradient, base + j, 0);
      }
    }
    if (args.row_sums != nullptr && threadIdx.x < 4) args.row_sums[row * 4 + threadIdx.x] = 0;
    return;
  }
  const RowSums sums = SumRow(args, base, label, shared);
  if (args.row_sums != nullptr && threadIdx.x == 0) {
    double target = static_cast<double>(Load(args.logits, base + label));
    if (args.smoothing > 0) {
      const double mean = static_cast<double>(sums.total) / static_cast<double>(args.classes);
      target += args.smoothing * (mean - target);
    }
    double* out = args.row_sums + row * 4;
    out[0] = log(static_cast<double>(sums.sum)) + (static_cast<double>(sums.most) - target);
    out[1] = sums.before == 0 ? 1 : 0;
    out[2] = 1;
    out[3] = sums.before < 5 ? 1 : 0;
  }
  if (args.gradient.data == nullptr) return;
  __syncthreads();  // the label's logit is read: the gradient may lie in its place
  const float seed = Load(args.seed, 0);
  const float factor = seed / sums.sum;
  const float each = static_cast<float>(static_cast<double>(seed) * args.smoothing /
                                        static_cast<double>(args.classes));
  const float own = static_cast<float>(static_cast<double>(seed) * (1 - args.smoothing));
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    float value = 0;
    if (j < args.classes) {
      value = expf(Load(args.logits, base + j) - sums.most) * factor - each;
      if (j == label) value -= own;
    }
    Store(args.gradient, base + j, value);
  }
}

__global__ void __launch_bounds__(kThreads) AddRowsKernel(CrossEntropyArgs args) {
  __shared__ double shared[kWarps];
  double sums[4] = {0, 0, 0, 0};
  for (int64_t row = threadIdx.x; row < args.rows; row += kThreads) {
    for (int i = 0; i < 4; ++i) sums[i] += args.row_sums[row * 4 + i];
  }
  for (int i = 0; i < 4; ++i) sums[i] = BlockSum<kThreads>(sums[i], shared);
  if (threadIdx.x != 0) return;
  if (args.evaluation != nullptr) {
    for (int i = 0; i < 4; ++i) args.evaluation[i] = sums[i];
    return;
  }
  const double high = floor(sums[2] / kRadix);
  const float loss = static_cast<float>(sums[0]);
  const float counts[2] = {static_cast<float>(high), static_cast<float>(sums[2] - high * kRadix)};
  args.loss[0] = args.adds ? args.loss[0] + loss : loss;
  for (int i = 0; i < 2; ++i) args.count[i] = args.adds ? args.count[i] + counts[i] : counts[i];
}

}  // namespace

Code LaunchCrossEntropy(const CrossEntropyArgs& args, Stream stream) {
  const Code code = Launch(CrossEntropyKernel, Grid(args.rows), kThreads, stream, args);
  if (code != 0 || args.row_sums == nullptr) return code;
  return Launch(AddRowsKernel, Grid(1), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
