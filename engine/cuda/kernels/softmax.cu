// SPDX-License-Identifier: Apache-2.0
// Softmax and its gradient. A row belongs to one block.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads) SoftmaxKernel(SoftmaxArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  float most = -INFINITY;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    most = fmaxf(most, Load(args.x, base + j));
  }
  most = BlockMax<kThreads>(most, shared);
  float sum = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    sum += expf(Load(args.x, base + j) - most);
  }
  const float factor = 1.0f / BlockSum<kThreads>(sum, shared);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    Store(args.y, base + j, expf(Load(args.x, base + j) - most) * factor);
  }
}

__global__ void __launch_bounds__(kThreads) SoftmaxBackwardKernel(SoftmaxArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  float sum = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    sum += Load(args.dy, base + j) * Load(args.x, base + j);
  }
  sum = BlockSum<kThreads>(sum, shared);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    Store(args.y, base + j, Load(args.x, base + j) * (Load(args.dy, base + j) - sum));
  }
}

}  // namespace

Code LaunchSoftmax(const SoftmaxArgs& args, Stream stream) {
  if (args.dy.data != nullptr) {
    return Launch(SoftmaxBackwardKernel, Grid(args.rows), kThreads, stream, args);
  }
  return Launch(SoftmaxKernel, Grid(args.rows), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
