// SPDX-License-Identifier: Apache-2.0
// quantize_fp8: the largest magnitudes of parts, then the rounding, in which every block takes the
// largest of these. And what it has rounded as bytes, for products of such: their scale follows
// from the values, the largest of which may have been rounded down past a power of two.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = kQuantizeParts;

// Elements i to i + 7, or fewer at the end. REQUIRES: as LoadEight, if kEight.
template <bool kEight>
__device__ __forceinline__ Eight LoadSome(const View& view, int64_t i, int64_t count) {
  if (kEight && i + 8 <= count) return LoadEight(view, i);
  Eight eight = {};
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (i + e < count) eight.x[e] = Load(view, i + e);
  }
  return eight;
}

template <bool kEight>
__global__ void __launch_bounds__(kThreads)
    LargestKernel(View view, int64_t count, float* partial) {
  __shared__ float shared[kThreads / kWarp];
  float most = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads * 8;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8; i < count; i += step) {
    const Eight x = LoadSome<kEight>(view, i, count);
#pragma unroll
    for (int e = 0; e < 8; ++e) most = fmaxf(most, Float8Magnitude(x.x[e]));
  }
  most = BlockMax<kThreads>(most, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = most;
}

// The scale's exponent, of `parts` largest magnitudes. All threads come.
__device__ __forceinline__ int ScaleOf(const Float8Format& format, const float* partial, int parts,
                                       float* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const float largest = BlockMax<kThreads>(thread < parts ? partial[thread] : 0, shared);
  return Float8ScaleExponent(format, largest);
}

template <bool kEight>
__global__ void __launch_bounds__(kThreads) QuantizeKernel(QuantizeArgs args, int parts) {
  __shared__ float shared[kThreads / kWarp];
  const int scale = ScaleOf(args.format, args.partial, parts, shared);
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (i >= args.count) return;
  Eight x = LoadSome<kEight>(args.x, i, args.count);
#pragma unroll
  for (int e = 0; e < 8; ++e) x.x[e] = RoundToFloat8(args.format, scale, x.x[e]);
  if (kEight && i + 8 <= args.count) {
    StoreEight(args.out, i, x);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (i + e < args.count) Store(args.out, i + e, x.x[e]);
  }
}

// A thread for eight bytes side by side.
__global__ void __launch_bounds__(kThreads) PackKernel(PackFp8Args args, int parts) {
  __shared__ float shared[kThreads / kWarp];
  const int scale = ScaleOf(args.format, args.partial, parts, shared);
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread == 0) *args.unit = Float8Power(-scale);
  const int64_t i = thread * 8, count = args.rows * args.columns;
  if (i >= count) return;
  const Eight x = LoadSome<false>(args.x, i, count);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (i + e < count) args.codes[i + e] = Float8Code(args.format, scale, x.x[e]);
  }
}

constexpr int kTile = 64;

// The same, turned by tiles in shared memory.
__global__ void __launch_bounds__(kThreads) PackTurnedKernel(PackFp8Args args, int parts) {
  __shared__ float shared[kThreads / kWarp];
  __shared__ uint8_t tile[kTile][kTile + 4];
  const int scale = ScaleOf(args.format, args.partial, parts, shared);
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && thread == 0) *args.unit = Float8Power(-scale);
  const int64_t across = (args.columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / across * kTile;
  const int64_t first_column = blockIdx.x % across * kTile;
  const int x = thread % kTile;
  for (int y = thread / kTile; y < kTile; y += kThreads / kTile) {
    const int64_t row = first_row + y, column = first_column + x;
    if (row < args.rows && column < args.columns) {
      tile[y][x] = Float8Code(args.format, scale, Load(args.x, row * args.columns + column));
    }
  }
  __syncthreads();
  for (int y = thread / kTile; y < kTile; y += kThreads / kTile) {
    const int64_t row = first_row + x, column = first_column + y;
    if (row < args.rows && column < args.columns) {
      args.codes[column * args.rows + row] = tile[x][y];
    }
  }
}

// The largest magnitudes of `parts` parts. `*parts` is how many there are.
template <bool kEight>
Code LaunchLargest(const View& view, int64_t count, float* partial, Stream stream, int* parts) {
  const int64_t blocks = DivideUp(count, 8 * kThreads);
  *parts = static_cast<int>(blocks < kQuantizeParts ? blocks : kQuantizeParts);
  return Launch(LargestKernel<kEight>, Grid(*parts), kThreads, stream, view, count, partial);
}

template <bool kEight>
Code LaunchBoth(const QuantizeArgs& args, Stream stream) {
  int parts = 0;
  const Code code = LaunchLargest<kEight>(args.x, args.count, args.partial, stream, &parts);
  if (code != 0) return code;
  return Launch(QuantizeKernel<kEight>, Grid(DivideUp(args.count, 8 * kThreads)), kThreads, stream,
                args, parts);
}

}  // namespace

Code LaunchQuantize(const QuantizeArgs& args, Stream stream) {
  const bool eight = AlignedEight(args.x) && AlignedEight(args.out);
  return eight ? LaunchBoth<true>(args, stream) : LaunchBoth<false>(args, stream);
}

Code LaunchPackFp8(const PackFp8Args& args, Stream stream) {
  const int64_t count = args.rows * args.columns;
  int parts = 0;
  const Code code = AlignedEight(args.x)
                        ? LaunchLargest<true>(args.x, count, args.partial, stream, &parts)
                        : LaunchLargest<false>(args.x, count, args.partial, stream, &parts);
  if (code != 0) return code;
  if (!args.turned) {
    return Launch(PackKernel, Grid(DivideUp(count, 8 * kThreads)), kThreads, stream, args, parts);
  }
  const int64_t tiles = DivideUp(args.rows, kTile) * DivideUp(args.columns, kTile);
  return Launch(PackTurnedKernel, Grid(tiles), kThreads, stream, args, parts);
}

}  // namespace lockstep::engine::cuda
