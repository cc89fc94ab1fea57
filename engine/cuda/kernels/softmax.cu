// SPDX-License-Identifier: Apache-2.0
// Softmax and its gradient. A row belongs to a warp that keeps it in registers, or, where rows are
// long or lie at odd places, to a block that keeps it in shared memory; only what does not fit
// there is read again.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/warp_matrix.h"
#include "engine/cuda/kernels/warp_row.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// ---- a block for each row: a thread keeps what it has read itself ----

template <bool kKept>
__global__ void __launch_bounds__(kThreads) SoftmaxKernel(SoftmaxArgs args) {
  __shared__ float shared[kWarps];
  float* const row = reinterpret_cast<float*>(SharedMemory());
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  float most = -INFINITY;
#pragma unroll 4
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float x = Load(args.x, base + j);
    if (kKept) row[j] = x;
    most = fmaxf(most, x);
  }
  most = BlockMax<kThreads>(most, shared);
  float sum = 0;
#pragma unroll 4
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float power = expf((kKept ? row[j] : Load(args.x, base + j)) - most);
    if (kKept) row[j] = power;
    sum += power;
  }
  const float factor = 1.0f / BlockSum<kThreads>(sum, shared);
#pragma unroll 4
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float power = kKept ? row[j] : expf(Load(args.x, base + j) - most);
    Store(args.y, base + j, power * factor);
  }
}

template <bool kKept>
__global__ void __launch_bounds__(kThreads) SoftmaxBackwardKernel(SoftmaxArgs args) {
  __shared__ float shared[kWarps];
  float* const row = reinterpret_cast<float*>(SharedMemory());
  float* const gradients = row + args.columns;
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  float sum = 0;
#pragma unroll 4
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float x = Load(args.x, base + j), dy = Load(args.dy, base + j);
    if (kKept) {
      row[j] = x;
      gradients[j] = dy;
    }
    sum += dy * x;
  }
  sum = BlockSum<kThreads>(sum, shared);
#pragma unroll 4
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float x = kKept ? row[j] : Load(args.x, base + j);
    const float dy = kKept ? gradients[j] : Load(args.dy, base + j);
    Store(args.y, base + j, x * (dy - sum));
  }
}

// ---- a warp for each row ----

// The warp's row; it has none where row >= rows.
template <int kChunks>
__device__ __forceinline__ WarpRow<kChunks> RowOfWarp(const SoftmaxArgs& args) {
  return {int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, args.columns};
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads) SoftmaxWarpKernel(SoftmaxArgs args) {
  const WarpRow<kChunks> own = RowOfWarp<kChunks>(args);
  if (own.row >= args.rows) return;  // of a whole warp alike
  RawEight raw[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (own.Has(c)) raw[c] = LoadRaw(args.x, own.At(c));
  }
  Eight x[kChunks];
  float most = -INFINITY;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    x[c] = Widen(args.x.type, raw[c]);
#pragma unroll
    for (int e = 0; e < 8; ++e) most = fmaxf(most, x[c].x[e]);
  }
  most = WarpMax(most);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) x[c].x[e] = expf(x[c].x[e] - most);
  }
  const float factor = 1.0f / own.Sum([&](int c, int e) { return x[c].x[e]; });
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) x[c].x[e] *= factor;
    StoreEight(args.y, own.At(c), x[c]);
  }
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads) SoftmaxBackwardWarpKernel(SoftmaxArgs args) {
  const WarpRow<kChunks> own = RowOfWarp<kChunks>(args);
  if (own.row >= args.rows) return;
  RawEight raw_x[kChunks], raw_dy[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    raw_x[c] = LoadRaw(args.x, own.At(c));
    raw_dy[c] = LoadRaw(args.dy, own.At(c));
  }
  Eight x[kChunks], dy[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    x[c] = Widen(args.x.type, raw_x[c]);
    dy[c] = Widen(args.dy.type, raw_dy[c]);
  }
  const float sum = own.Sum([&](int c, int e) { return dy[c].x[e] * x[c].x[e]; });
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) x[c].x[e] *= dy[c].x[e] - sum;
    StoreEight(args.y, own.At(c), x[c]);
  }
}

// A block for each row, with `bytes` of shared memory for it.
template <bool kKept>
Code LaunchBlocks(const SoftmaxArgs& args, size_t bytes, Stream stream) {
  const dim3 grid = Grid(args.rows);
  if (args.dy.data != nullptr) {
    return LaunchShared(SoftmaxBackwardKernel<kKept>, grid, kThreads, bytes, stream, args);
  }
  return LaunchShared(SoftmaxKernel<kKept>, grid, kThreads, bytes, stream, args);
}

template <int kChunks>
Code LaunchWarps(const SoftmaxArgs& args, Stream stream) {
  return Launch(
      args.dy.data != nullptr ? SoftmaxBackwardWarpKernel<kChunks> : SoftmaxWarpKernel<kChunks>,
      Grid(DivideUp(args.rows, kWarps)), kThreads, stream, args);
}

}  // namespace

Code LaunchSoftmax(const SoftmaxArgs& args, Stream stream) {
  const bool wide = FitsWarps(args.columns) && AlignedEight(args.x) && AlignedEight(args.dy) &&
                    AlignedEight(args.y);
  if (!wide) {
    const int64_t bytes = args.columns * (args.dy.data != nullptr ? 8 : 4);
    return bytes <= kKeptRowBytes ? LaunchBlocks<true>(args, static_cast<size_t>(bytes), stream)
                                  : LaunchBlocks<false>(args, 0, stream);
  }
  return args.columns <= 4 * kWarpColumns ? LaunchWarps<4>(args, stream)
                                          : LaunchWarps<8>(args, stream);
}

}  // namespace lockstep::engine::cuda
