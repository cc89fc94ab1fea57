// SPDX-License-Identifier: Apache-2.0
// Softmax with cross-entropy, and what an evaluation counts. A row of logits belongs to one block,
// which keeps it in shared memory for the gradient where two such blocks fit into a multiprocessor,
// and reads it again elsewhere; the rows' losses are fp64 and are added by one block in a fixed
// order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"
#include "engine/cuda/kernels/row_types.h"
#include "engine/cuda/kernels/warp_matrix.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr double kRadix = 4096;  // kCountRadix of ops/counts.h

struct RowSums {
  float most;
  float sum;     // of exp(x - most)
  float total;   // of x, for label smoothing
  float before;  // logits that come before the label's: the larger ones, and equal ones on its left
};

// What a thread moves at once.
template <int kWide>
struct Piece {
  float x[kWide];
};
// A row as it lies in memory, or a thread's pieces of it in shared memory.
template <int kWide, bool kKept>
struct Row {
  // Piece of the row from column j on.
  __device__ __forceinline__ Piece<kWide> At(int64_t j) const {
    Piece<kWide> piece;
    if constexpr (kWide == 1) {
      piece.x[0] = Load(view, base + j);
    } else {
      Eight eight;
      if constexpr (kKept) {
        const uint16_t* const from = kept + j * Words();
        RawEight raw = {*reinterpret_cast<const uint4*>(from), {}};
        if (view.type == Type::kF32) raw.high = *reinterpret_cast<const uint4*>(from + 8);
        eight = Widen(view.type, raw);
      } else {
        eight = LoadEight(view, base + j);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) piece.x[e] = eight.x[e];
    }
    return piece;
  }
  // Brings the thread's pieces, which it alone reads, all at once.
  __device__ __forceinline__ void Keep(int64_t columns) {
    kept = SharedMemory();
    const auto* const from = static_cast<const uint16_t*>(view.data) + base * Words();
    for (int64_t j = int64_t{threadIdx.x} * kWide; j < columns; j += kThreads * kWide) {
      CopyAsync(kept + j * Words(), from + j * Words(), true);
      if (view.type != Type::kF32) continue;
      CopyAsync(kept + j * Words() + 8, from + j * Words() + 8, true);
    }
    CommitCopies();
    WaitForCopies();
  }
  // 16-bit words of an element.
  __device__ __forceinline__ int Words() const { return view.type == Type::kF32 ? 2 : 1; }

  View view;
  int64_t base;
  uint16_t* kept = nullptr;
};

// All threads of the block get the row's sums, in one pass: a thread's sum is brought to a new
// maximum whenever it finds one (M. Milakov, N. Gimelshein, "Online normalizer calculation for
// softmax", 2018).
template <int kWide, bool kKept>
__device__ RowSums SumRow(const CrossEntropyArgs& args, const Row<kWide, kKept>& row, int32_t label,
                          float* shared) {
  RowSums sums = {-INFINITY, 0, 0, 0};
  const float own = args.evaluation != nullptr ? Load(args.logits, row.base + label) : 0;
  for (int64_t j = int64_t{threadIdx.x} * kWide; j < args.classes; j += kThreads * kWide) {
    const Piece<kWide> piece = row.At(j);
    float most = sums.most;
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (j + e < args.classes) most = fmaxf(most, piece.x[e]);
    }
    if (most > sums.most) {
      sums.sum *= expf(sums.most - most);
      sums.most = most;
    }
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (j + e >= args.classes) continue;
      const float x = piece.x[e];
      sums.sum += expf(x - sums.most);
      sums.total += x;
      if (args.evaluation != nullptr && j + e != label) {
        sums.before += (j + e < label ? !(x < own) : !(x <= own)) ? 1.0f : 0.0f;
      }
    }
  }
  const float most = BlockMax<kThreads>(sums.most, shared);
  // A thread without a class adds nothing.
  sums.sum = BlockSum<kThreads>(sums.sum == 0 ? 0 : sums.sum * expf(sums.most - most), shared);
  sums.most = most;
  if (args.smoothing > 0) sums.total = BlockSum<kThreads>(sums.total, shared);
  if (args.evaluation != nullptr) {
    sums.before = BlockSum<kThreads>(sums.before, shared);
    if (!(own == own)) sums.before = INFINITY;  // NaN is never the answer
  }
  return sums;
}

template <int kWide>
__device__ __forceinline__ void StorePiece(const View& view, int64_t i, const Piece<kWide>& piece) {
  if constexpr (kWide == 1) {
    Store(view, i, piece.x[0]);
  } else {
    Eight eight;
#pragma unroll
    for (int e = 0; e < 8; ++e) eight.x[e] = piece.x[e];
    StoreEight(view, i, eight);
  }
}

template <int kWide, bool kKept>
__global__ void __launch_bounds__(kThreads) CrossEntropyKernel(CrossEntropyArgs args) {
  __shared__ float shared[kWarps];
  const int64_t row = blockIdx.x, base = row * args.columns;
  const int32_t label = args.labels[row];
  const bool counts = label >= 0 && (args.valid_rows == nullptr || row < *args.valid_rows);
  if (!counts) {
    if (args.gradient.data != nullptr) {
      for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
        Store(args.gradient, base + j, 0);
      }
    }
    if (args.row_sums != nullptr && threadIdx.x < 4) args.row_sums[row * 4 + threadIdx.x] = 0;
    return;
  }
  Row<kWide, kKept> logits = {args.logits, base};
  if constexpr (kKept) logits.Keep(args.columns);
  const RowSums sums = SumRow(args, logits, label, shared);
  if (args.row_sums != nullptr && threadIdx.x == 0) {
    double target = static_cast<double>(Load(args.logits, base + label));
    if (args.smoothing > 0) {
      const double mean = static_cast<double>(sums.total) / static_cast<double>(args.classes);
      target += args.smoothing * (mean - target);
    }
    double* out = args.row_sums + row * 4;
    out[0] = log(static_cast<double>(sums.sum)) + (static_cast<double>(sums.most) - target);
    out[1] = sums.before == 0 ? 1 : 0;
    out[2] = 1;
    out[3] = sums.before < 5 ? 1 : 0;
  }
  if (args.gradient.data == nullptr) return;
  __syncthreads();  // the label's logit is read: the gradient may lie in its place
  const float seed = Load(args.seed, 0);
  const float factor = seed / sums.sum;
  const float each = static_cast<float>(static_cast<double>(seed) * args.smoothing /
                                        static_cast<double>(args.classes));
  const float own = static_cast<float>(static_cast<double>(seed) * (1 - args.smoothing));
  for (int64_t j = int64_t{threadIdx.x} * kWide; j < args.columns; j += kThreads * kWide) {
    Piece<kWide> piece = logits.At(j);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      float value = 0;
      if (j + e < args.classes) {
        value = expf(piece.x[e] - sums.most) * factor - each;
        if (j + e == label) value -= own;
      }
      piece.x[e] = value;
    }
    StorePiece<kWide>(args.gradient, base + j, piece);
  }
}

__global__ void __launch_bounds__(kThreads) AddRowsKernel(CrossEntropyArgs args) {
  __shared__ double shared[kWarps];
  double sums[4] = {0, 0, 0, 0};
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < args.rows; row += kThreads) {
    for (int i = 0; i < 4; ++i) sums[i] += args.row_sums[row * 4 + i];
  }
  for (int i = 0; i < 4; ++i) sums[i] = BlockSum<kThreads>(sums[i], shared);
  if (threadIdx.x != 0) return;
  if (args.evaluation != nullptr) {
    for (int i = 0; i < 4; ++i) args.evaluation[i] = sums[i];
    return;
  }
  const double high = floor(sums[2] / kRadix);
  const float loss = static_cast<float>(sums[0]);
  const float counts[2] = {static_cast<float>(high), static_cast<float>(sums[2] - high * kRadix)};
  args.loss[0] = args.adds ? args.loss[0] + loss : loss;
  for (int i = 0; i < 2; ++i) args.count[i] = args.adds ? args.count[i] + counts[i] : counts[i];
}

// Returns whether a block keeps a row of so many bytes on the device that is current.
bool Keeps(int64_t bytes) {
  int device = 0, shared = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) ==
             cudaSuccess &&
         KeepsLogits(bytes, shared);
}

Code LaunchRows(const CrossEntropyArgs& args, Stream stream) {
  const dim3 grid = Grid(args.rows);
  const bool wide =
      args.columns % 8 == 0 && AlignedEight(args.logits) && AlignedEight(args.gradient);
  if (!wide) return Launch(CrossEntropyKernel<1, false>, grid, kThreads, stream, args);
  const int64_t bytes = args.columns * (args.logits.type == Type::kF32 ? 4 : 2);
  if (args.gradient.data == nullptr || !Keeps(bytes)) {
    return Launch(CrossEntropyKernel<8, false>, grid, kThreads, stream, args);
  }
  return LaunchShared(CrossEntropyKernel<8, true>, grid, kThreads, static_cast<size_t>(bytes),
                      stream, args);
}

}  // namespace

Code LaunchCrossEntropy(const CrossEntropyArgs& args, Stream stream) {
  const Code code = LaunchRows(args, stream);
  if (code != 0 || args.row_sums == nullptr) return code;
  return Launch(AddRowsKernel, Grid(1), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
