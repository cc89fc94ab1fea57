// SPDX-License-Identifier: Apache-2.0
// Embeddings. The gradient of a table's row is one sum over the positions that hold its token, in
// their order: positions are collected by token in any order, put in order by counting, then added
// one after another. Where a token has more than kEmbeddingPiece positions, each such piece of them
// is a sum of its own, that begins with its first position, and the pieces' sums are then added one
// after another. Integers alone are counted by atomics.
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

// Numbers [begin, end) of `count`, of which each thread of a block has as many as the others.
struct Share {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ Share OwnShare(int64_t count) {
  const int64_t each = (count + kScanThreads - 1) / kScanThreads;
  const int64_t begin = each * threadIdx.x, end = begin + each;
  return {begin < count ? begin : count, end < count ? end : count};
}
// The sum of what the threads up to this one have. All threads of the block come.
__device__ __forceinline__ int32_t SumUpTo(int32_t own, int32_t (&sums)[kScanThreads]) {
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kScanThreads; step *= 2) {
    const int32_t before =
        static_cast<int>(threadIdx.x) >= step ? sums[static_cast<int>(threadIdx.x) - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  return sums[threadIdx.x];
}

// starts[row] = how many positions the rows before have; cursors begin there.
__global__ void __launch_bounds__(kScanThreads) ScanKernel(EmbeddingBackwardArgs args) {
  __shared__ int32_t sums[kScanThreads];
  const Share rows = OwnShare(args.rows);
  int32_t own = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) own += args.cursors[row];
  const int32_t all = SumUpTo(own, sums);
  int32_t at = all - own;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int32_t count = args.cursors[row];
    args.starts[row] = at;
    args.cursors[row] = at;
    at += count;
  }
  if (threadIdx.x == kScanThreads - 1) args.starts[args.rows] = all;
}

__global__ void __launch_bounds__(kThreads) CollectKernel(EmbeddingBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.positions || !Valid(args.tokens[i], args.rows)) return;
  args.found[atomicAdd(&args.cursors[args.tokens[i]], 1)] = static_cast<int32_t>(i);
}

// Positions [begin, end) of `order`.
struct Range {
  int32_t begin;
  int32_t end;
};
__device__ __forceinline__ Range RangeOf(const EmbeddingBackwardArgs& args, int64_t row) {
  return {args.starts[row], args.starts[row + 1]};
}

// A position's place among those of its token is how many of them come before it. Of a token with
// more than kCounted the next kernel does it, since everyone would look at all.
constexpr int kCounted = 2048;
__global__ void __launch_bounds__(kThreads) OrderKernel(EmbeddingBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.starts[args.rows]) return;
  const int32_t position = args.found[i];
  const auto [begin, end] = RangeOf(args, args.tokens[position]);
  if (end - begin > kCounted) return;
  int32_t place = begin;
  for (int32_t at = begin; at < end; ++at) place += args.found[at] < position;
  args.order[place] = position;
}

// The row with more than `many` positions that begins in the block's `many` places of `found`, or
// -1. It is at the last of them, since it goes on behind them.
__device__ __forceinline__ int32_t LongRowFrom(const EmbeddingBackwardArgs& args, int64_t chunk,
                                               int many) {
  const int64_t begin = chunk * many, last = begin + many - 1;
  if (last >= args.starts[args.rows]) return -1;
  const int32_t row = args.tokens[args.found[last]];
  const Range range = RangeOf(args, row);
  return range.begin >= begin && range.end - range.begin > many ? row : -1;
}

// A block goes through all positions for a token that has more than kCounted.
__global__ void __launch_bounds__(kScanThreads) OrderLongKernel(EmbeddingBackwardArgs args) {
  __shared__ int32_t sums[kScanThreads];
  const int32_t row = LongRowFrom(args, blockIdx.x, kCounted);
  if (row < 0) return;
  const Share share = OwnShare(args.positions);
  int32_t own = 0;
  for (int64_t i = share.begin; i < share.end; ++i) own += args.tokens[i] == row;
  int32_t place = args.starts[row] + SumUpTo(own, sums) - own;
  for (int64_t i = share.begin; i < share.end; ++i) {
    if (args.tokens[i] == row) args.order[place++] = static_cast<int32_t>(i);
  }
}

constexpr int kPiece = kEmbeddingPiece;

// The piece whose sum is row `slot` of `partial`, empty where there is none. Pieces begin at least
// kPiece apart but for the first one of a row, so that at most two begin in each kPiece places: one
// that continues a row has the first slot, one that begins a row the second.
__device__ __forceinline__ Range PieceOf(const EmbeddingBackwardArgs& args, int64_t slot) {
  const int64_t chunk = slot / 2, from = chunk * kPiece;
  if (slot % 2 != 0) {
    const int32_t row = LongRowFrom(args, chunk, kPiece);
    if (row < 0) return {0, 0};
    return {args.starts[row], args.starts[row] + kPiece};
  }
  if (from >= args.starts[args.rows]) return {0, 0};
  const auto [begin, end] = RangeOf(args, args.tokens[args.found[from]]);
  const int32_t before = (static_cast<int32_t>(from) - begin + kPiece - 1) / kPiece;
  const int32_t at = begin + before * kPiece;
  if (before == 0 || at >= end) return {0, 0};
  return {at, at + kPiece < end ? at + kPiece : end};
}
// The slot of a row's piece `piece`.
__device__ __forceinline__ int64_t SlotOf(Range row, int piece) {
  return 2 * int64_t{row.begin / kPiece + piece} + (piece == 0 ? 1 : 0);
}
__device__ __forceinline__ int PiecesOf(Range row) {
  return (row.end - row.begin + kPiece - 1) / kPiece;
}

__global__ void __launch_bounds__(kThreads) AddPiecesKernel(EmbeddingBackwardArgs args) {
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const Range piece = PieceOf(args, blockIdx.x);
  if (column >= args.columns || piece.begin == piece.end) return;
  float sum = Load(args.dy, int64_t{args.order[piece.begin]} * args.columns + column);
  for (int32_t i = piece.begin + 1; i < piece.end; ++i) {
    sum += Load(args.dy, int64_t{args.order[i]} * args.columns + column);
  }
  args.partial[int64_t{blockIdx.x} * args.columns + column] = sum;
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
  const Range range = RangeOf(args, row);
  const int pieces = PiecesOf(range);
  if (pieces > 1) {
    for (int p = 0; p < pieces; ++p) sum += args.partial[SlotOf(range, p) * args.columns + column];
  } else {
    for (int32_t i = range.begin; i < range.end; ++i) {
      sum += Load(args.dy, int64_t{args.order[i]} * args.columns + column);
    }
  }
  args.out[at] = sum;
}

// Adds eight columns of rows row(begin) to row(end - 1) of `from` to the sum, one after another;
// several are on their way together.
template <typename RowAt>
__device__ __forceinline__ void AddEights(const View& from, int32_t begin, int32_t end,
                                          int64_t columns, int64_t column, const RowAt& row,
                                          Eight* sum) {
  constexpr int kAhead = 4;
  for (int32_t i = begin; i < end; i += kAhead) {
    RawEight raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const bool there = i + k < end;
      const View view = {there ? from.data : nullptr, from.type};
      raw[k] = LoadRaw(view, (there ? row(i + k) : 0) * columns + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k >= end) break;
      const Eight x = Widen(from.type, raw[k]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum->x[e] += x.x[e];
    }
  }
}

// The same on eight columns at once.
__global__ void __launch_bounds__(kThreads) AddPiecesEightKernel(EmbeddingBackwardArgs args) {
  const int64_t slot = OwnRow(), column = OwnColumn();
  if (slot / 2 * kPiece >= args.positions || column >= args.columns) return;
  const Range piece = PieceOf(args, slot);
  if (piece.begin == piece.end) return;
  const int32_t* const order = args.order;
  const auto row = [order](int32_t i) { return int64_t{order[i]}; };
  Eight sum = LoadEight(args.dy, row(piece.begin) * args.columns + column);
  AddEights(args.dy, piece.begin + 1, piece.end, args.columns, column, row, &sum);
  StoreEight({args.partial, Type::kF32}, slot * args.columns + column, sum);
}

// As above.
__global__ void __launch_bounds__(kThreads) AddRowsEightKernel(EmbeddingBackwardArgs args) {
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
  const Range range = RangeOf(args, row);
  const int pieces = PiecesOf(range);
  if (pieces > 1) {
    const auto slot = [range](int32_t p) { return SlotOf(range, p); };
    AddEights({args.partial, Type::kF32}, 0, pieces, args.columns, column, slot, &sum);
  } else {
    const int32_t* const order = args.order;
    const auto position = [order](int32_t i) { return int64_t{order[i]}; };
    AddEights(args.dy, range.begin, range.end, args.columns, column, position, &sum);
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
  if (code == 0 && args.positions > kCounted) {
    code = launch(OrderLongKernel, Grid(args.positions / kCounted), kScanThreads);
  }
  if (code != 0) return code;
  const bool fits = args.columns % 8 == 0 && AlignedEight(args.dy) && AlignedEight(args.base) &&
                    AlignedEight({args.out, Type::kF32});
  const auto launch_rows = [&](void (*eight)(EmbeddingBackwardArgs),
                               void (*one)(EmbeddingBackwardArgs), int64_t rows) {
    if (!fits) return launch(one, Grid(rows, DivideUp(args.columns, kThreads)), kThreads);
    const Eights eights = EightsOf(rows, args.columns);
    return Launch(eight, eights.grid, eights.block, stream, args);
  };
  if (args.positions > kPiece) {
    code = launch_rows(AddPiecesEightKernel, AddPiecesKernel, 2 * EmbeddingChunks(args.positions));
  }
  return code != 0 ? code : launch_rows(AddRowsEightKernel, AddRowsKernel, args.rows);
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
