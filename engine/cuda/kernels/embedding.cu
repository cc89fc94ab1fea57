// SPDX-License-Identifier: Apache-2.0
// Embeddings. The gradient of a table's row is one sum over the positions that hold its token, in
// their order: positions are collected by token in any order, put in order by counting, then added
// one after another. Integers alone are counted by atomics.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;

__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.positions * args.columns) return;
  const int64_t token = args.tokens[i / args.columns];
  const bool valid = token >= 0 && token < args.rows;
  Store(args.out, i, valid ? Load(args.table, token * args.columns + i % args.columns) : 0);
}

__device__ __forceinline__ bool Valid(int32_t token, int64_t rows) {
  return token >= 0 && token < rows;
}

__global__ void __launch_bounds__(kThreads) ClearKernel(EmbeddingBackwardArgs args) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < args.rows) args.cursors[row] = 0;
}

__global__ void __launch_bounds__(kThreads) CountKernel(EmbeddingBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.positions || !Valid(args.tokens[i], args.rows)) return;
  atomicAdd(&args.cursors[args.tokens[i]], 1);
}

// starts[row] = how many positions the rows before have; cursors begin there.
__global__ void __launch_bounds__(kScanThreads) ScanKernel(EmbeddingBackwardArgs args) {
  __shared__ int32_t sums[kScanThreads];
  const int64_t each = (args.rows + kScanThreads - 1) / kScanThreads;
  const int64_t begin = each * threadIdx.x;
  const int64_t end = begin + each < args.rows ? begin + each : args.rows;
  int32_t own = 0;
  for (int64_t row = begin; row < end; ++row) own += args.cursors[row];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kScanThreads; step *= 2) {
    const int32_t before =
        static_cast<int>(threadIdx.x) >= step ? sums[static_cast<int>(threadIdx.x) - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  int32_t at = sums[threadIdx.x] - own;
  for (int64_t row = begin; row < end; ++row) {
    const int32_t count = args.cursors[row];
    args.starts[row] = at;
    args.cursors[row] = at;
    at += count;
  }
  if (threadIdx.x == kScanThreads - 1) args.starts[args.rows] = sums[threadIdx.x];
}

__global__ void __launch_bounds__(kThreads) CollectKernel(EmbeddingBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.positions || !Valid(args.tokens[i], args.rows)) return;
  args.found[atomicAdd(&args.cursors[args.tokens[i]], 1)] = static_cast<int32_t>(i);
}

// A position's place among those of its token is how many of them come before it.
__global__ void __launch_bounds__(kThreads) OrderKernel(EmbeddingBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.starts[args.rows]) return;
  const int32_t position = args.found[i];
  const int32_t token = args.tokens[position];
  const int32_t begin = args.starts[token], end = args.starts[token + 1];
  int32_t place = begin;
  for (int32_t at = begin; at < end; ++at) place += args.found[at] < position;
  args.order[place] = position;
}

__global__ void __launch_bounds__(kThreads) AddRowsKernel(EmbeddingBackwardArgs args) {
  const int64_t row = blockIdx.x;
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= args.columns) return;
  const int64_t at = row * args.columns + column;
  // A base that was born in the output's place has added to what was there already.
  const bool in_place = args.base.data == args.out;
  float sum = args.adds || in_place ? args.out[at] : 0;
  if (args.base.data != nullptr && !in_place) sum += Load(args.base, at);
  for (int32_t i = args.starts[row]; i < args.starts[row + 1]; ++i) {
    sum += Load(args.dy, int64_t{args.order[i]} * args.columns + column);
  }
  args.out[at] = sum;
}

__global__ void __launch_bounds__(kThreads) PositionsKernel(PositionsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.columns) return;
  const int64_t row = i / args.columns, column = i % args.columns;
  const float place = Load(args.table, row % args.length * args.columns + column);
  Store(args.out, i, Load(args.x, i) + place);
}

__global__ void __launch_bounds__(kThreads) PositionsBackwardKernel(PositionsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.table_rows * args.columns) return;
  float sum = 0;
  if (i / args.columns < args.length) {
    const int64_t stride = args.length * args.columns;
    for (int64_t at = i; at < args.rows * args.columns; at += stride) sum += Load(args.x, at);
  }
  Store(args.out, i, args.adds ? Load(args.out, i) + sum : sum);
}

}  // namespace

Code LaunchEmbedding(const EmbeddingArgs& args, Stream stream) {
  return Launch(EmbeddingKernel, Grid(DivideUp(args.positions * args.columns, kThreads)), kThreads,
                stream, args);
}

Code LaunchEmbeddingBackward(const EmbeddingBackwardArgs& args, Stream stream) {
  const dim3 rows = Grid(DivideUp(args.rows, kThreads));
  const dim3 positions = Grid(DivideUp(args.positions, kThreads));
  const auto launch = [&](void (*kernel)(EmbeddingBackwardArgs), dim3 grid, int threads) {
    return Launch(kernel, grid, threads, stream, args);
  };
  Code code = launch(ClearKernel, rows, kThreads);
  if (code == 0) code = launch(CountKernel, positions, kThreads);
  if (code == 0) code = launch(ScanKernel, Grid(1), kScanThreads);
  if (code == 0) code = launch(CollectKernel, positions, kThreads);
  if (code == 0) code = launch(OrderKernel, positions, kThreads);
  if (code != 0) return code;
  return launch(AddRowsKernel, Grid(args.rows, DivideUp(args.columns, kThreads)), kThreads);
}

Code LaunchPositions(const PositionsArgs& args, Stream stream) {
  return Launch(PositionsKernel, Grid(DivideUp(args.rows * args.columns, kThreads)), kThreads,
                stream, args);
}

Code LaunchPositionsBackward(const PositionsArgs& args, Stream stream) {
  return Launch(PositionsBackwardKernel, Grid(DivideUp(args.table_rows * args.columns, kThreads)),
                kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
