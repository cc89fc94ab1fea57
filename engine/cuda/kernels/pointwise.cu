// SPDX-License-Identifier: Apache-2.0
// Kernels on single elements: activations, sums, casts, dropout, what follows a matrix product.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kGeluScale = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// The distribution function of the normal distribution.
__device__ __forceinline__ float NormalBelow(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

__device__ __forceinline__ float GeluTanhSlope(float x) {
  const float s = x * x;
  const float f = Sigmoid(x * kGeluScale * (s * kGeluCube + 1.0f));
  return x * f * (1.0f - f) * (s * (3 * kGeluCube) + 1.0f) * kGeluScale + f;
}

__device__ __forceinline__ float SiluSlope(float x) {
  const float s = Sigmoid(x);
  return x * s * (1.0f - s) + s;
}

__device__ __forceinline__ float Apply(Function function, float a, float b, float factor) {
  switch (function) {
#define LOCKSTEP_FUNCTION(Name, key, value) \
  case Function::k##Name:                   \
    return value;
#include "engine/cuda/kernels/functions.inc"
  }
  return 0;
}

// A thread for each element, or for each eight of them.
template <bool kEight>
__global__ void __launch_bounds__(kThreads) PointwiseKernel(PointwiseArgs args) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t i = kEight ? thread * 8 : thread;
  if (i >= args.count) return;
  if (!kEight || i + 8 > args.count) {
    for (int64_t e = i; e < args.count && e < i + 8; ++e) {
      const float a = args.a.data != nullptr ? Load(args.a, e) : 1;
      const float b = args.b.data != nullptr ? Load(args.b, e) : 0;
      float value = Apply(args.function, a, b, args.factor);
      if (args.mask.data != nullptr && Load(args.mask, e) <= 0) value = 0;
      Store(args.out, e, args.adds ? Load(args.out, e) + value : value);
      if (!kEight) return;
    }
    return;
  }
  const View before = {args.adds ? args.out.data : nullptr, args.out.type};
  const RawEight raw_a = LoadRaw(args.a, i), raw_b = LoadRaw(args.b, i);
  const RawEight raw_mask = LoadRaw(args.mask, i), raw_out = LoadRaw(before, i);
  const Eight a = Widen(args.a.type, raw_a), b = Widen(args.b.type, raw_b);
  const Eight mask = Widen(args.mask.type, raw_mask);
  Eight out = Widen(args.out.type, raw_out);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float value =
        Apply(args.function, args.a.data != nullptr ? a.x[e] : 1, b.x[e], args.factor);
    const bool counts = args.mask.data == nullptr || !(mask.x[e] <= 0);
    const float made = counts ? value : 0;
    out.x[e] = args.adds ? out.x[e] + made : made;
  }
  StoreEight(args.out, i, out);
}

// A thread for each element, or for each eight of them.
template <bool kEight>
__global__ void __launch_bounds__(kThreads) DropoutKernel(DropoutArgs args) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const Site site = SiteOf(args.drop);
  const uint64_t before =
      static_cast<uint64_t>(args.drop.address[3]) * static_cast<uint64_t>(args.count);
  const int64_t i = kEight ? thread * 8 : thread;
  if (i >= args.count) return;
  // Elements share their addresses by four where these begin at a multiple of 4.
  if (!kEight || i + 8 > args.count || before % 4 != 0) {
#pragma unroll 1
    for (int64_t e = i; e < args.count && e < i + (kEight ? 8 : 1); ++e) {
      const bool keeps = DrawHalf(site, before + static_cast<uint64_t>(e)) >= args.drop.threshold;
      float value = keeps ? Load(args.x, e) * args.drop.scale : 0;
      if (args.residual.data != nullptr) value += Load(args.residual, e);
      Store(args.out, e, value);
    }
    return;
  }
  const RawEight raw_x = LoadRaw(args.x, i), raw_residual = LoadRaw(args.residual, i);
  uint32_t halves[2][4];
  RandomHalves(site, before + static_cast<uint64_t>(i), halves[0]);
  RandomHalves(site, before + static_cast<uint64_t>(i + 4), halves[1]);
  const Eight x = Widen(args.x.type, raw_x), residual = Widen(args.residual.type, raw_residual);
  Eight out;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float value = halves[e / 4][e % 4] >= args.drop.threshold ? x.x[e] * args.drop.scale : 0;
    out.x[e] = args.residual.data != nullptr ? residual.x[e] + value : value;
  }
  StoreEight(args.out, i, out);
}

__global__ void __launch_bounds__(kThreads) EpilogueKernel(EpilogueArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.columns) return;
  float value = Load(args.x, i);
  if (args.bias.data != nullptr) value += Load(args.bias, i % args.columns);
  if (args.residual.data != nullptr) value += Load(args.residual, i);
  if (args.relu && value < 0) value = 0;
  if (args.mask.data != nullptr && Load(args.mask, i) <= 0) value = 0;
  Store(args.out, i, value);
}

// The same on eight columns at once.
__global__ void __launch_bounds__(kThreads) EpilogueEightKernel(EpilogueArgs args) {
  const int64_t row = OwnRow(), column = OwnColumn();
  if (row >= args.rows || column >= args.columns) return;
  const int64_t i = row * args.columns + column;
  const RawEight raw_x = LoadRaw(args.x, i), raw_residual = LoadRaw(args.residual, i);
  const RawEight raw_mask = LoadRaw(args.mask, i), raw_bias = LoadRaw(args.bias, column);
  Eight value = Widen(args.x.type, raw_x);
  const Eight bias = Widen(args.bias.type, raw_bias), mask = Widen(args.mask.type, raw_mask);
  const Eight residual = Widen(args.residual.type, raw_residual);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    float x = value.x[e];
    if (args.bias.data != nullptr) x += bias.x[e];
    if (args.residual.data != nullptr) x += residual.x[e];
    if (args.relu && x < 0) x = 0;
    if (args.mask.data != nullptr && mask.x[e] <= 0) x = 0;
    value.x[e] = x;
  }
  StoreEight(args.out, i, value);
}

__global__ void __launch_bounds__(kThreads) TakeRowsKernel(TakeRowsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t rows = args.backward ? args.rows * args.stride : args.rows;
  if (i >= rows * args.columns) return;
  const int64_t row = i / args.columns, column = i % args.columns;
  if (!args.backward) {
    Store(args.out, i, Load(args.in, row * args.stride * args.columns + column));
  } else {
    const bool taken = row % args.stride == 0;
    Store(args.out, i, taken ? Load(args.in, row / args.stride * args.columns + column) : 0);
  }
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;

__global__ void __launch_bounds__(kTile* kTileRows) TransposeKernel(TransposeArgs args) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t tiles = (args.columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / tiles * kTile, first_column = blockIdx.x % tiles * kTile;
  const int64_t image = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  const bool inside = image < args.images;  // the grid may be larger
  const int64_t base = image * args.rows * args.columns;
  for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kTileRows) {
    const int64_t row = first_row + r, column = first_column + threadIdx.x;
    if (inside && row < args.rows && column < args.columns) {
      tile[r][threadIdx.x] = Load(args.in, base + row * args.columns + column);
    }
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y); c < kTile; c += kTileRows) {
    const int64_t row = first_row + threadIdx.x, column = first_column + c;
    if (inside && row < args.rows && column < args.columns) {
      Store(args.out, base + column * args.rows + row, tile[threadIdx.x][c]);
    }
  }
}

}  // namespace

Code LaunchPointwise(const PointwiseArgs& args, Stream stream) {
  if (AlignedEight(args.a) && AlignedEight(args.b) && AlignedEight(args.mask) &&
      AlignedEight(args.out)) {
    return Launch(PointwiseKernel<true>, Grid(DivideUp(args.count, 8 * kThreads)), kThreads, stream,
                  args);
  }
  return Launch(PointwiseKernel<false>, Grid(DivideUp(args.count, kThreads)), kThreads, stream,
                args);
}

Code LaunchDropout(const DropoutArgs& args, Stream stream) {
  if (AlignedEight(args.x) && AlignedEight(args.residual) && AlignedEight(args.out)) {
    return Launch(DropoutKernel<true>, Grid(DivideUp(args.count, 8 * kThreads)), kThreads, stream,
                  args);
  }
  return Launch(DropoutKernel<false>, Grid(DivideUp(args.count, kThreads)), kThreads, stream, args);
}

Code LaunchEpilogue(const EpilogueArgs& args, Stream stream) {
  const int64_t count = args.rows * args.columns;
  if (args.columns % 8 == 0 && AlignedEight(args.x) && AlignedEight(args.bias) &&
      AlignedEight(args.residual) && AlignedEight(args.mask) && AlignedEight(args.out)) {
    const Eights eights = EightsOf(args.rows, args.columns);
    return Launch(EpilogueEightKernel, eights.grid, eights.block, stream, args);
  }
  return Launch(EpilogueKernel, Grid(DivideUp(count, kThreads)), kThreads, stream, args);
}

Code LaunchTakeRows(const TakeRowsArgs& args, Stream stream) {
  const int64_t rows = args.backward ? args.rows * args.stride : args.rows;
  return Launch(TakeRowsKernel, Grid(DivideUp(rows * args.columns, kThreads)), kThreads, stream,
                args);
}

Code LaunchTranspose(const TransposeArgs& args, Stream stream) {
  constexpr int64_t kMost = 32768;  // of a grid's second extent
  const int64_t tiles = DivideUp(args.rows, kTile) * DivideUp(args.columns, kTile);
  const int64_t y = args.images < kMost ? args.images : kMost;
  return Launch(TransposeKernel, Grid(tiles, y, DivideUp(args.images, y)), dim3(kTile, kTileRows),
                stream, args);
}

}  // namespace lockstep::engine::cuda
