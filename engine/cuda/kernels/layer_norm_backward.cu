// SPDX-License-Identifier: Apache-2.0
// The gradients of layer normalisation. That of the input belongs to a warp for each row, as the
// normalisation does, or to a block. Those of scale and shift are sums over rows: the rows are cut
// into parts, which the shape alone decides, and the parts' sums are added in order. Where both are
// wanted a warp that has a row in registers makes both, and dy and x are read once; the warps of a
// block keep their sums in shared memory meanwhile. Sums are the same bits, with the input's
// gradient or without.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/warp_matrix.h"
#include "engine/cuda/kernels/warp_row.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

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

// A lane's part of a row: dy, then dy gamma, and x as the normalisation leaves it.
template <int kChunks>
struct GradientRow {
  Eight g[kChunks];
  Eight h[kChunks];
};

// Reads the row, two chunks at a time, whose loads are on their way together; `use` is called with
// each.
template <int kChunks, typename F>
__device__ __forceinline__ void LoadRow(const WarpRow<kChunks>& own, const View& dy, const View& x,
                                        float mean, float rstd, GradientRow<kChunks>* row,
                                        const F& use) {
#pragma unroll
  for (int first = 0; first < kChunks; first += 2) {
    RawEight raw_dy[2], raw_x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!own.Has(first + i)) continue;
      raw_dy[i] = LoadRaw(dy, own.At(first + i));
      raw_x[i] = LoadRaw(x, own.At(first + i));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = first + i;
      if (!own.Has(c)) continue;
      row->g[c] = Widen(dy.type, raw_dy[i]);
      row->h[c] = Widen(x.type, raw_x[i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) row->h[c].x[e] = (row->h[c].x[e] - mean) * rstd;
      use(c);
    }
  }
}

// Makes the input's gradient of a row that is loaded, and what goes to a second place.
template <int kChunks>
__device__ __forceinline__ void StoreInput(const LayerNormBackwardInputArgs& args,
                                           const WarpRow<kChunks>& own, float rstd,
                                           GradientRow<kChunks>* row) {
  const float n = static_cast<float>(args.columns);
  Eight(&g)[kChunks] = row->g;
  const Eight(&h)[kChunks] = row->h;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    const Eight gamma = Widen(args.gamma.type, LoadRaw(args.gamma, own.Column(c)));
#pragma unroll
    for (int e = 0; e < 8; ++e) g[c].x[e] *= gamma.x[e];
  }
  const float a = own.Sum([&](int c, int e) { return g[c].x[e]; }) / n;
  const float b = own.Sum([&](int c, int e) { return g[c].x[e] * h[c].x[e]; }) / n;
  RawEight residual[2];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!own.Has(c)) continue;
    if (c % 2 == 0) {
      residual[0] = LoadRaw(args.residual, own.At(c));
      if (own.Has(c + 1)) residual[1] = LoadRaw(args.residual, own.At(c + 1));
    }
    Eight out = Widen(args.residual.type, residual[c % 2]);
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

template <int kChunks>
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardInputWarpKernel(LayerNormBackwardInputArgs args) {
  const WarpRow<kChunks> own(int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, args.columns);
  if (own.row >= args.rows) return;
  const float mean = Load(args.mean, own.row), rstd = Load(args.rstd, own.row);
  GradientRow<kChunks> row;
  LoadRow(own, args.dy, args.x, mean, rstd, &row, [](int) {});
  StoreInput(args, own, rstd, &row);
}

// ---- scale and shift ----

// The sums of a warp's rows in shared memory: four columns side by side, those of the lanes in
// line.
template <int kChunks>
struct WarpSums {
  static constexpr int kFours = 4 * kChunks * kWarp;  // of both gradients
  // `what`: 0 of gamma, 1 of beta; `half` of a chunk's eight columns.
  __device__ __forceinline__ float4& At(int what, int half, int chunk, int lane) const {
    return sums[((what * 2 + half) * kChunks + chunk) * kWarp + lane];
  }
  __device__ __forceinline__ void Clear(int lane) const {
#pragma unroll
    for (int i = 0; i < 4 * kChunks; ++i) sums[i * kWarp + lane] = float4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void Add(int what, int chunk, int lane, const Eight& x) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4& at = At(what, half, chunk, lane);
      float4 sum = at;
      sum.x += x.x[4 * half];
      sum.y += x.x[4 * half + 1];
      sum.z += x.x[4 * half + 2];
      sum.w += x.x[4 * half + 3];
      at = sum;
    }
  }
  float4* sums;
};

// A block has a part of `each` rows: `partial` gets its sums. With kInput its warps make the
// input's gradient of their rows too.
template <int kChunks, int kBlockWarps, bool kInput>
__global__ void __launch_bounds__(kBlockWarps* kWarp, kChunks <= 4 ? 3 : 4)
    LayerNormBackwardKernel(LayerNormBackwardArgs args, int64_t each) {
  using Sums = WarpSums<kChunks>;
  const LayerNormBackwardWeightArgs& weight = args.weight;
  const Sums block{reinterpret_cast<float4*>(SharedMemory())};  // those of the first warp
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Sums sums{block.sums + warp * Sums::kFours};
  sums.Clear(static_cast<int>(threadIdx.x) % kWarp);
  const int64_t begin = int64_t{blockIdx.x} * each;
  const int64_t end = begin + each < weight.rows ? begin + each : weight.rows;
#pragma unroll 1
  for (int64_t r = begin + warp; r < end; r += kBlockWarps) {
    const WarpRow<kChunks> own(r, weight.columns);
    const float mean = Load(weight.mean, r), rstd = Load(weight.rstd, r);
    GradientRow<kChunks> row;
    LoadRow(own, weight.dy, weight.x, mean, rstd, &row, [&](int c) {
      Eight product;
#pragma unroll
      for (int e = 0; e < 8; ++e) product.x[e] = row.g[c].x[e] * row.h[c].x[e];
      sums.Add(0, c, own.lane, product);
      sums.Add(1, c, own.lane, row.g[c]);
    });
    if constexpr (kInput) StoreInput(args.input, own, rstd, &row);
  }
  __syncthreads();
  float* const partial = weight.partial + int64_t{blockIdx.x} * 2 * weight.columns;
  const int columns = static_cast<int>(weight.columns);
  for (int first = static_cast<int>(threadIdx.x) * 4; first < 2 * columns;
       first += kBlockWarps * kWarp * 4) {
    const int what = first < columns ? 0 : 1, column = first - what * columns;
    const int eight = column / 8, half = column % 8 / 4;
    const float4* const at = &block.At(what, half, eight / kWarp, eight % kWarp);
    float4 sum = at[0];
#pragma unroll
    for (int w = 1; w < kBlockWarps; ++w) {
      const float4 other = at[w * Sums::kFours];
      sum.x += other.x;
      sum.y += other.y;
      sum.z += other.z;
      sum.w += other.w;
    }
    *reinterpret_cast<float4*>(partial + first) = sum;
  }
}

constexpr int kAddAcross = 32, kAddDown = 16;

// dgamma and dbeta (+)= the sums of the parts: a thread adds every kAddDown-th part, then these
// sums are added in order.
__global__ void __launch_bounds__(kAddAcross* kAddDown)
    AddLayerNormPartsKernel(LayerNormBackwardWeightArgs args, int64_t parts) {
  __shared__ float shared[kAddDown][kAddAcross];
  const int64_t row = 2 * args.columns, i = int64_t{blockIdx.x} * kAddAcross + threadIdx.x;
  float sum = 0;
  if (i < row) {
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < parts; part += kAddDown) {
      sum += args.partial[part * row + i];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= row) return;
#pragma unroll
  for (int r = 1; r < kAddDown; ++r) sum += shared[r][threadIdx.x];
  float* const out = i < args.columns ? args.dgamma + i : args.dbeta + (i - args.columns);
  *out = args.adds ? *out + sum : sum;
}

template <int kChunks, int kBlockWarps, bool kInput>
Code LaunchParts(const LayerNormBackwardArgs& args, Stream stream) {
  const LayerNormBackwardWeightArgs& weight = args.weight;
  const int64_t parts = LayerNormParts(weight.rows);
  const size_t shared = kBlockWarps * WarpSums<kChunks>::kFours * sizeof(float4);
  const Code code =
      LaunchShared(LayerNormBackwardKernel<kChunks, kBlockWarps, kInput>, Grid(parts),
                   kBlockWarps * kWarp, shared, stream, args, LayerNormPartRows(weight.rows));
  if (code != 0) return code;
  return Launch(AddLayerNormPartsKernel, Grid(DivideUp(2 * weight.columns, kAddAcross)),
                dim3(kAddAcross, kAddDown), stream, weight, parts);
}

// Rows of up to 1024 columns are those of a block's four warps, longer ones those of two.
template <bool kInput>
Code LaunchColumns(const LayerNormBackwardArgs& args, Stream stream) {
  if (args.weight.columns <= 4 * kWarpColumns) return LaunchParts<4, 4, kInput>(args, stream);
  return LaunchParts<8, 2, kInput>(args, stream);
}

bool InWarps(const LayerNormBackwardWeightArgs& args) {
  return FitsWarps(args.columns) && AlignedEight(args.dy) && AlignedEight(args.x);
}

bool InWarps(const LayerNormBackwardInputArgs& args) {
  return FitsWarps(args.columns) && AlignedEight(args.dy) && AlignedEight(args.x) &&
         AlignedEight(args.gamma) && AlignedEight(args.residual) && AlignedEight(args.dx) &&
         AlignedEight(args.rounded);
}

}  // namespace

Code LaunchLayerNormBackwardInput(const LayerNormBackwardInputArgs& args, Stream stream) {
  if (!InWarps(args)) {
    return Launch(LayerNormBackwardInputKernel, Grid(args.rows), kThreads, stream, args);
  }
  const dim3 grid = Grid(DivideUp(args.rows, kWarps));
  if (args.columns <= 4 * kWarpColumns) {
    return Launch(LayerNormBackwardInputWarpKernel<4>, grid, kThreads, stream, args);
  }
  return Launch(LayerNormBackwardInputWarpKernel<8>, grid, kThreads, stream, args);
}

Code LaunchLayerNormBackwardWeight(const LayerNormBackwardWeightArgs& args, Stream stream) {
  if (!InWarps(args)) return LaunchLayerNormColumns(args, stream);
  return LaunchColumns<false>({{}, args}, stream);
}

Code LaunchLayerNormBackward(const LayerNormBackwardArgs& args, Stream stream) {
  if (InWarps(args.weight) && InWarps(args.input)) return LaunchColumns<true>(args, stream);
  const Code code = LaunchLayerNormBackwardWeight(args.weight, stream);
  return code != 0 ? code : LaunchLayerNormBackwardInput(args.input, stream);
}

}  // namespace lockstep::engine::cuda
