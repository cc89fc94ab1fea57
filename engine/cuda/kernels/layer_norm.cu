// SPDX-License-Identifier: Apache-2.0
// Layer normalisation and the gradient of its input. A row belongs to a warp that keeps it in
// registers, or, where rows are long or lie at odd places, to a block that reads it again. A
// residual is added on the way, and what is made goes to a second place in another type, or as
// dropout leaves it.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// What dropout, if there is any, leaves of `value`, element `i` of `count`.
__device__ __forceinline__ float Dropped(const Drop& drop, int64_t count, int64_t i, float value) {
  if (drop.address == nullptr) return value;
  const uint64_t before = static_cast<uint64_t>(drop.address[3]) * static_cast<uint64_t>(count);
  const uint32_t half = DrawHalf(SiteOf(drop), before + static_cast<uint64_t>(i));
  return half >= drop.threshold ? value * drop.scale : 0;
}
// The same of eight elements from `i` on, a multiple of 8; `count` is one too.
__device__ __forceinline__ void DropEight(const Drop& drop, int64_t count, int64_t i, Eight* x) {
  if (drop.address == nullptr) return;
  const Site site = SiteOf(drop);
  const uint64_t before = static_cast<uint64_t>(drop.address[3]) * static_cast<uint64_t>(count);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t numbers[4];
    RandomHalves(site, before + static_cast<uint64_t>(i + 4 * half), numbers);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& value = x->x[4 * half + e];
      value = numbers[e] >= drop.threshold ? value * drop.scale : 0;
    }
  }
}

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

// With g = dy gamma and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)).
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardInputKernel(LayerNormBackwardInputArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  const float n = static_cast<float>(args.columns);
  const float mean = Load(args.mean, blockIdx.x), rstd = Load(args.rstd, blockIdx.x);
  float sum = 0, product = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float g = Load(args.dy, base + j) * Load(args.gamma, j);
    sum += g;
    product += g * ((Load(args.x, base + j) - mean) * rstd);
  }
  const float a = BlockSum<kThreads>(sum, shared) / n;
  const float b = BlockSum<kThreads>(product, shared) / n;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float g = Load(args.dy, base + j) * Load(args.gamma, j);
    const float h = (Load(args.x, base + j) - mean) * rstd;
    float out = rstd * (g - a - h * b);
    if (args.residual.data != nullptr) out += Load(args.residual, base + j);
    Store(args.dx, base + j, out);
    if (args.rounded.data == nullptr) continue;
    Store(args.rounded, base + j,
          Dropped(args.drop, args.rows * args.columns, base + j, RoundedAs(args.dx.type, out)));
  }
}

// ---- a warp for each row ----

// A lane's elements of a row: chunk c is elements (32 c + lane) * 8 to + 7.
template <int kChunks>
struct WarpRow {
  __device__ __forceinline__ explicit WarpRow(int64_t columns)
      : row(int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        columns(static_cast<int>(columns)) {}
  __device__ __forceinline__ int Column(int chunk) const { return (chunk * kWarp + lane) * 8; }
  __device__ __forceinline__ bool Has(int chunk) const { return Column(chunk) < columns; }
  __device__ __forceinline__ int64_t At(int chunk) const { return row * columns + Column(chunk); }
  // The sum over the row of f(chunk, element).
  template <typename F>
  __device__ __forceinline__ float Sum(F f) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!Has(c)) continue;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += f(c, e);
    }
    return WarpSum(sum);
  }

  int64_t row;
  int lane;
  int columns;
};

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
  const WarpRow<kChunks> own(args.columns);
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

template <int kChunks>
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardInputWarpKernel(LayerNormBackwardInputArgs args) {
  const WarpRow<kChunks> own(args.columns);
  if (own.row >= args.rows) return;
  const float n = static_cast<float>(args.columns);
  const float mean = Load(args.mean, own.row), rstd = Load(args.rstd, own.row);
  Eight g[kChunks], h[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    const RawEight raw_dy = LoadRaw(args.dy, own.At(c)), raw_x = LoadRaw(args.x, own.At(c));
    const RawEight raw_gamma = LoadRaw(args.gamma, own.Column(c));
    g[c] = Widen(args.dy.type, raw_dy);
    h[c] = Widen(args.x.type, raw_x);
    const Eight gamma = Widen(args.gamma.type, raw_gamma);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      g[c].x[e] *= gamma.x[e];
      h[c].x[e] = (h[c].x[e] - mean) * rstd;
    }
  }
  const float a = own.Sum([&](int c, int e) { return g[c].x[e]; }) / n;
  const float b = own.Sum([&](int c, int e) { return g[c].x[e] * h[c].x[e]; }) / n;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    Eight out = {};
    if (args.residual.data != nullptr) out = LoadEight(args.residual, own.At(c));
#pragma unroll
    for (int e = 0; e < 8; ++e) out.x[e] += rstd * (g[c].x[e] - a - h[c].x[e] * b);
    StoreEight(args.dx, own.At(c), out);
    if (args.rounded.data == nullptr) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) out.x[e] = RoundedAs(args.dx.type, out.x[e]);
    DropEight(args.drop, args.rows * args.columns, own.At(c), &out);
    StoreEight(args.rounded, own.At(c), out);
  }
}

constexpr int64_t kWarpColumns = kWarp * 8;  // of a chunk

bool FitsWarps(int64_t columns) { return columns % 8 == 0 && columns <= 8 * kWarpColumns; }

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

Code LaunchLayerNormBackwardInput(const LayerNormBackwardInputArgs& args, Stream stream) {
  const bool wide = FitsWarps(args.columns) && AlignedEight(args.dy) && AlignedEight(args.x) &&
                    AlignedEight(args.gamma) && AlignedEight(args.residual) &&
                    AlignedEight(args.dx) && AlignedEight(args.rounded);
  if (!wide) {
    return Launch(LayerNormBackwardInputKernel, Grid(args.rows), kThreads, stream, args);
  }
  const dim3 grid = Grid(DivideUp(args.rows, kWarps));
  if (args.columns <= 4 * kWarpColumns) {
    return Launch(LayerNormBackwardInputWarpKernel<4>, grid, kThreads, stream, args);
  }
  return Launch(LayerNormBackwardInputWarpKernel<8>, grid, kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
