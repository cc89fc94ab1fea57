// SPDX-License-Identifier: Apache-2.0
// Layer normalisation. A row belongs to a warp that keeps it in registers, or, where rows are long
// or lie at odd places, to a block that reads it again. A residual is added on the way, and what is
// made goes to a second place in another type.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/warp_row.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// 12 blocks: 40 registers, with nothing spilled.
__global__ void __launch_bounds__(kThreads, 12) LayerNormKernel(LayerNormArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  const float n = static_cast<float>(args.columns);
  View x = args.x;
  if (args.branch.data != nullptr) {
    for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
      Store(args.sum, base + j,
            Load(args.x, base + j) + Dropped(args.drop, args.rows * args.columns, base + j,
                                             Load(args.branch, base + j)));
    }
    x = args.sum;  // a thread reads what it has written itself
  }
  float sum = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) sum += Load(x, base + j);
  const float mean = BlockSum<kThreads>(sum, shared) / n;
  float squares = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float d = Load(x, base + j) - mean;
    squares += d * d;
  }
  const float rstd = 1.0f / sqrtf(BlockSum<kThreads>(squares, shared) / n + args.eps);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float h = (Load(x, base + j) - mean) * rstd;
    const float y = h * Load(args.gamma, j) + Load(args.beta, j);
    Store(args.y, base + j, y);
    if (args.rounded.data != nullptr) Store(args.rounded, base + j, RoundedAs(args.y.type, y));
  }
  if (threadIdx.x == 0) {
    args.mean[blockIdx.x] = mean;
    args.rstd[blockIdx.x] = rstd;
  }
}

// ---- a warp for each row ----

// Eight elements from a multiple of 8 on: x with the branch, as they are stored.
__device__ __forceinline__ Eight AddBranch(const LayerNormArgs& args, int64_t i) {
  const RawEight raw_x = LoadRaw(args.x, i), raw_branch = LoadRaw(args.branch, i);
  Eight x = Widen(args.x.type, raw_x);
  if (args.branch.data == nullptr) return x;
  Eight branch = Widen(args.branch.type, raw_branch);
  DropEight(args.drop, args.rows * args.columns, i, &branch);
#pragma unroll
  for (int e = 0; e < 8; ++e) x.x[e] = RoundedAs(args.sum.type, x.x[e] + branch.x[e]);
  StoreEight(args.sum, i, x);
  return x;
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads) LayerNormWarpKernel(LayerNormArgs args) {
  const WarpRow<kChunks> own(int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, args.columns);
  if (own.row >= args.rows) return;  // of a whole warp alike
  const float n = static_cast<float>(args.columns);
  Eight x[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (own.Has(c)) x[c] = AddBranch(args, own.At(c));
  }
  const float mean = own.Sum([&](int c, int e) { return x[c].x[e]; }) / n;
  const float squares = own.Sum([&](int c, int e) {
    const float d = x[c].x[e] - mean;
    return d * d;
  });
  const float rstd = 1.0f / sqrtf(squares / n + args.eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    const RawEight raw_gamma = LoadRaw(args.gamma, own.Column(c));
    const RawEight raw_beta = LoadRaw(args.beta, own.Column(c));
    const Eight gamma = Widen(args.gamma.type, raw_gamma);
    const Eight beta = Widen(args.beta.type, raw_beta);
    Eight y;
#pragma unroll
    for (int e = 0; e < 8; ++e) y.x[e] = (x[c].x[e] - mean) * rstd * gamma.x[e] + beta.x[e];
    StoreEight(args.y, own.At(c), y);
    if (args.rounded.data == nullptr) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) y.x[e] = RoundedAs(args.y.type, y.x[e]);
    StoreEight(args.rounded, own.At(c), y);
  }
  if (own.lane == 0) {
    args.mean[own.row] = mean;
    args.rstd[own.row] = rstd;
  }
}

}  // namespace

Code LaunchLayerNorm(const LayerNormArgs& args, Stream stream) {
  const bool wide = FitsWarps(args.columns) && AlignedEight(args.x) && AlignedEight(args.gamma) &&
                    AlignedEight(args.beta) && AlignedEight(args.y) && AlignedEight(args.branch) &&
                    AlignedEight(args.sum) && AlignedEight(args.rounded);
  if (!wide) return Launch(LayerNormKernel, Grid(args.rows), kThreads, stream, args);
  const dim3 grid = Grid(DivideUp(args.rows, kWarps));
  if (args.columns <= 4 * kWarpColumns) {
    return Launch(LayerNormWarpKernel<4>, grid, kThreads, stream, args);
  }
  return Launch(LayerNormWarpKernel<8>, grid, kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
