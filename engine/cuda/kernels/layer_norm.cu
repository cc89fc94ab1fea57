// SPDX-License-Identifier: Apache-2.0
// Layer normalisation. A row belongs to a warp that keeps it in registers, or, where rows are long
// or lie at odd places, to a block that reads it again. A residual, which may be a normalisation of
// what is read, is added on the way, and what is made goes to a second place in another type.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/warp_row.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// What a row is normalised by.
struct Moments {
  float mean;
  float rstd;
};

// Of the block's row of x, which begins at `base`.
__device__ __forceinline__ Moments BlockMoments(const View& x, int64_t base, int64_t columns,
                                                float eps, float* shared) {
  const float n = static_cast<float>(columns);
  float sum = 0;
  for (int64_t j = threadIdx.x; j < columns; j += kThreads) sum += Load(x, base + j);
  const float mean = BlockSum<kThreads>(sum, shared) / n;
  float squares = 0;
  for (int64_t j = threadIdx.x; j < columns; j += kThreads) {
    const float d = Load(x, base + j) - mean;
    squares += d * d;
  }
  return {mean, 1.0f / sqrtf(BlockSum<kThreads>(squares, shared) / n + eps)};
}

// 12 blocks: 40 registers, with nothing spilled.
__global__ void __launch_bounds__(kThreads, 12) LayerNormKernel(LayerNormArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  View x = args.x;
  if (args.branch.data != nullptr) {
    const bool norms = args.residual_gamma.data != nullptr;
    Moments residual = {0, 1};
    if (norms) residual = BlockMoments(x, base, args.columns, args.residual_eps, shared);
    for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
      float own = Load(x, base + j);
      if (norms) {
        const float h = (own - residual.mean) * residual.rstd;
        own = h * Load(args.residual_gamma, j) + Load(args.residual_beta, j);
      }
      Store(args.sum, base + j,
            own + Dropped(args.drop, args.rows * args.columns, base + j,
                          Load(args.branch, base + j)));
    }
    x = args.sum;  // a thread reads what it has written itself
  }
  const auto [mean, rstd] = BlockMoments(x, base, args.columns, args.eps, shared);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float h = (Load(x, base + j) - mean) * rstd;
    const float y = h * Load(args.gamma, j) + Load(args.beta, j);
    if (args.y.data != nullptr) Store(args.y, base + j, y);
    if (args.rounded.data != nullptr) Store(args.rounded, base + j, RoundedAs(args.y.type, y));
  }
  if (threadIdx.x == 0) {
    args.mean[blockIdx.x] = mean;
    args.rstd[blockIdx.x] = rstd;
  }
}

// ---- a warp for each row ----

// Eight elements x from a multiple of 8 on, with the branch as they are stored.
__device__ __forceinline__ void AddBranch(const LayerNormArgs& args, int64_t i,
                                          const RawEight& raw_branch, Eight* x) {
  if (args.branch.data == nullptr) return;
  Eight branch = Widen(args.branch.type, raw_branch);
  DropEight(args.drop, args.rows * args.columns, i, &branch);
#pragma unroll
  for (int e = 0; e < 8; ++e) x->x[e] = RoundedAs(args.sum.type, x->x[e] + branch.x[e]);
  StoreEight(args.sum, i, *x);
}

template <int kChunks>
__device__ __forceinline__ Moments WarpMoments(const WarpRow<kChunks>& own,
                                               const Eight (&x)[kChunks], float eps) {
  const float n = static_cast<float>(own.columns);
  const float mean = own.Sum([&](int c, int e) { return x[c].x[e]; }) / n;
  const float squares = own.Sum([&](int c, int e) {
    const float d = x[c].x[e] - mean;
    return d * d;
  });
  return {mean, 1.0f / sqrtf(squares / n + eps)};
}

// Eight elements from `column` on, normalised.
__device__ __forceinline__ Eight Normed(const Eight& x, const Moments& moments,
                                        const View& gamma_view, const View& beta_view, int column) {
  const RawEight raw_gamma = LoadRaw(gamma_view, column), raw_beta = LoadRaw(beta_view, column);
  const Eight gamma = Widen(gamma_view.type, raw_gamma), beta = Widen(beta_view.type, raw_beta);
  Eight y;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    y.x[e] = (x.x[e] - moments.mean) * moments.rstd * gamma.x[e] + beta.x[e];
  }
  return y;
}

// With kNorms the residual is a normalisation. 3 blocks: 168 registers, or some are spilled.
template <int kChunks, bool kNorms>
__global__ void __launch_bounds__(kThreads, kChunks == 8 && kNorms ? 3 : 0)
    LayerNormWarpKernel(LayerNormArgs args) {
  const WarpRow<kChunks> own(int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, args.columns);
  if (own.row >= args.rows) return;  // of a whole warp alike
  Eight x[kChunks];
  if constexpr (kNorms) {
    RawEight raw[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (own.Has(c)) raw[c] = LoadRaw(args.x, own.At(c));
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (own.Has(c)) x[c] = Widen(args.x.type, raw[c]);
    }
    const Moments residual = WarpMoments(own, x, args.residual_eps);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!own.Has(c)) continue;
      const RawEight branch = LoadRaw(args.branch, own.At(c));
      x[c] = Normed(x[c], residual, args.residual_gamma, args.residual_beta, own.Column(c));
      AddBranch(args, own.At(c), branch, &x[c]);
    }
  } else {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!own.Has(c)) continue;
      const RawEight raw = LoadRaw(args.x, own.At(c)), branch = LoadRaw(args.branch, own.At(c));
      x[c] = Widen(args.x.type, raw);
      AddBranch(args, own.At(c), branch, &x[c]);
    }
  }
  const Moments moments = WarpMoments(own, x, args.eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    Eight y = Normed(x[c], moments, args.gamma, args.beta, own.Column(c));
    if (args.y.data != nullptr) StoreEight(args.y, own.At(c), y);
    if (args.rounded.data == nullptr) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) y.x[e] = RoundedAs(args.y.type, y.x[e]);
    StoreEight(args.rounded, own.At(c), y);
  }
  if (own.lane == 0) {
    args.mean[own.row] = moments.mean;
    args.rstd[own.row] = moments.rstd;
  }
}

template <int kChunks>
Code LaunchWarps(const LayerNormArgs& args, Stream stream) {
  const bool norms = args.residual_gamma.data != nullptr;
  return Launch(norms ? LayerNormWarpKernel<kChunks, true> : LayerNormWarpKernel<kChunks, false>,
                Grid(DivideUp(args.rows, kWarps)), kThreads, stream, args);
}

}  // namespace

Code LaunchLayerNorm(const LayerNormArgs& args, Stream stream) {
  const bool wide = FitsWarps(args.columns) && AlignedEight(args.x) && AlignedEight(args.gamma) &&
                    AlignedEight(args.beta) && AlignedEight(args.y) && AlignedEight(args.branch) &&
                    AlignedEight(args.sum) && AlignedEight(args.rounded) &&
                    AlignedEight(args.residual_gamma) && AlignedEight(args.residual_beta);
  if (!wide) return Launch(LayerNormKernel, Grid(args.rows), kThreads, stream, args);
  return args.columns <= 4 * kWarpColumns ? LaunchWarps<4>(args, stream)
                                          : LaunchWarps<8>(args, stream);
}

}  // namespace lockstep::engine::cuda
