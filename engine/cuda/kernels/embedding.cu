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

__device__ __forceinline__ bool Valid(int32_t token, int64_t rows) {
  return token >= 0 && token < rows;
}

__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.positions * args.columns) return;
  const int64_t token = args.tokens[i / args.columns];
  const bool valid = token >= 0 && token < args.rows;
  Store(args.out, i, valid ? Load(args.table, token * args.columns + i % args.columns) : 0);
}

// The same on eight columns at once.
__global__ void __launch_bounds__(kThreads) EmbeddingEightKernel(EmbeddingArgs args) {
  const int64_t row = OwnRow(), column = OwnColumn();
  if (row >= args.positions || column >= args.columns) return;
  const int32_t token = args.tokens[row];
  const View table = {Valid(token, args.rows) ? args.table.data : nullptr, args.table.type};
  const RawEight raw = LoadRaw(table, int64_t{token} * args.columns + column);
  StoreEight(args.out, row * args.columns + column, Widen(table.type, raw));
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

// The same on eight columns at once; rows of several positions are on their way together and are
// added in the same order.
__global__ void __launch_bounds__(kThreads) AddRowsEightKernel(EmbeddingBackwardArgs args) {
  constexpr int kAhead = 4;
  const int64_t row = OwnRow(), column = OwnColumn();
  if (row >= args.rows || column >= args.columns) return;
  const int64_t at = row * args.columns + column;
  const bool in_place = args.base.data == args.out;
  const View before = {args.adds || in_place ? args.out : nullptr, Type::kF32};
  const View base = {in_place ? nullptr : args.base.data, args.base.type};
  const RawEight raw_before = LoadRaw(before, at), raw_base = LoadRaw(base, at);
  Eight sum = Widen(Type::kF32, raw_before);
  const Eight more = Widen(base.type, raw_base);
  if (base.data != nullptr) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.x[e] += more.x[e];
  }
  const int32_t end = args.starts[row + 1];
  for (int32_t i = args.starts[row]; i < end; i += kAhead) {
    RawEight raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const bool there = i + k < end;
      const View dy = {there ? args.dy.data : nullptr, args.dy.type};
      raw[k] = LoadRaw(dy, int64_t{there ? args.order[i + k] : 0} * args.columns + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k >= end) break;
      const Eight dy = Widen(args.dy.type, raw[k]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum.x[e] += dy.x[e];
    }
  }
  StoreEight({args.out, Type::kF32}, at, sum);
}

__global__ void __launch_bounds__(kThreads) PositionsKernel(PositionsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.columns) return;
  const int64_t row = i / args.columns, column = i % args.columns;
  const float place = Load(args.table, row % args.length * args.columns + column);
  Store(args.out, i, Load(args.x, i) + place);
}

// The same on eight columns at once.
__global__ void __launch_bounds__(kThreads) PositionsEightKernel(PositionsArgs args) {
  const int64_t row = OwnRow(), column = OwnColumn();
  if (row >= args.rows || column >= args.columns) return;
  const int64_t i = row * args.columns + column;
  const RawEight raw_x = LoadRaw(args.x, i);
  const RawEight raw_place = LoadRaw(args.table, row % args.length * args.columns + column);
  Eight x = Widen(args.x.type, raw_x);
  const Eight place = Widen(args.table.type, raw_place);
#pragma unroll
  for (int e = 0; e < 8; ++e) x.x[e] += place.x[e];
  StoreEight(args.out, i, x);
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

// The same on eight columns at once; the rows of several texts are on their way together and are
// added in the same order.
__global__ void __launch_bounds__(kThreads) PositionsBackwardEightKernel(PositionsArgs args) {
  constexpr int kAhead = 4;
  const int64_t row = OwnRow(), column = OwnColumn();
  if (row >= args.table_rows || column >= args.columns) return;
  const int64_t at = row * args.columns + column;
  const View before = {args.adds ? args.out.data : nullptr, args.out.type};
  const RawEight raw_before = LoadRaw(before, at);
  Eight sum = {};
  const int64_t end = row < args.length ? args.rows : row;
  for (int64_t from = row; from < end; from += kAhead * args.length) {
    RawEight raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t r = from + k * args.length;
      const View x = {r < end ? args.x.data : nullptr, args.x.type};
      raw[k] = LoadRaw(x, r * args.columns + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (from + k * args.length >= end) break;
      const Eight x = Widen(args.x.type, raw[k]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum.x[e] += x.x[e];
    }
  }
  const Eight old = Widen(args.out.type, raw_before);
  if (args.adds) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.x[e] += old.x[e];
  }
  StoreEight(args.out, at, sum);
}

// A thread for each eight columns where rows are whole eights and `fits`, that all views can be
// moved so; else one for each element.
template <typename Args>
Code LaunchRows(void (*eight)(Args), void (*one)(Args), bool fits, int64_t rows, int64_t columns,
                Stream stream, const Args& args) {
  if (!fits || columns % 8 != 0) {
    return Launch(one, Grid(DivideUp(rows * columns, kThreads)), kThreads, stream, args);
  }
  const Eights eights = EightsOf(rows, columns);
  return Launch(eight, eights.grid, eights.block, stream, args);
}

}  // namespace

Code LaunchEmbedding(const EmbeddingArgs& args, Stream stream) {
  return LaunchRows(EmbeddingEightKernel, EmbeddingKernel,
                    AlignedEight(args.table) && AlignedEight(args.out), args.positions,
                    args.columns, stream, args);
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
  if (args.columns % 8 != 0 || !AlignedEight(args.dy) || !AlignedEight(args.base) ||
      !AlignedEight({args.out, Type::kF32})) {
    return launch(AddRowsKernel, Grid(args.rows, DivideUp(args.columns, kThreads)), kThreads);
  }
  const Eights eights = EightsOf(args.rows, args.columns);
  return Launch(AddRowsEightKernel, eights.grid, eights.block, stream, args);
}

Code LaunchPositions(const PositionsArgs& args, Stream stream) {
  return LaunchRows(PositionsEightKernel, PositionsKernel,
                    AlignedEight(args.x) && AlignedEight(args.table) && AlignedEight(args.out),
                    args.rows, args.columns, stream, args);
}

Code LaunchPositionsBackward(const PositionsArgs& args, Stream stream) {
  return LaunchRows(PositionsBackwardEightKernel, PositionsBackwardKernel,
                    AlignedEight(args.x) && AlignedEight(args.out), args.table_rows, args.columns,
                    stream, args);
}

}  // namespace lockstep::engine::cuda
