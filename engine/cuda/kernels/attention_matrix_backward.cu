// SPDX-License-Identifier: Apache-2.0
// Attention backward on tensor cores, in 16 bits with fp32 sums: attention_backward.cu's formulas.
// Scores are made twice, once by the owners of keys (dk and dv) and once by those of queries (dq),
// so that every sum has one owner and one order. A warp makes the scores of 32 queries and 32 keys
// at a time where registers allow it: what it reads from shared memory for that, which is what
// limits these kernels, is then least. In the first kernel it owns 32 keys and half of the columns:
// the block's probabilities change hands in shared memory.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_gradient.h"

namespace lockstep::engine::cuda {
namespace {

// Keys of a tile, and queries where the owners of keys go through them.
constexpr int kSide = 64;
static_assert(kMatrixWarps == 4);
// Tiles of keys in which a warp makes scores: every second one of the tile's.
constexpr int kTiles = 4, kStep = 2;

// What a thread knows of its two rows of queries: lane / 4 and the one 8 below.
struct Rows {
  int query[2];
  float log_sum[2];  // in the base of PowerOfTwo
  float delta[2];
};

__device__ __forceinline__ Rows RowsOf(const AttentionBackwardArgs& args, const Head& h,
                                       int first_row) {
  const AttentionArgs& f = args.forward;
  Rows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_row + 8 * half + static_cast<int>(threadIdx.x) % kWarp / 4;
    rows.query[half] = query;
    rows.log_sum[half] = rows.delta[half] = 0;
    if (query >= f.length) continue;
    rows.log_sum[half] = Load(f.log_sums, h.unit * f.length + query) * kLog2E;
    rows.delta[half] = args.delta[h.unit * f.length + query];
  }
  return rows;
}

// From scores and the products dy v^T of 16 queries by the warp's keys: `put(tile, half, p, ds)`
// gets pairs of dropped probabilities and of the gradients of scores. The tiles are those from
// number `first_tile` on. With kAll all keys count for all queries.
template <Type kType, bool kAll, typename F>
__device__ __forceinline__ void MakeWeightsOf(const AttentionArgs& f, const Head& h,
                                              const HeadDrop& drop, const Rows& rows, int first_key,
                                              int first_tile, const float (&scores)[kTiles][4],
                                              const float (&products)[kTiles][4], const F& put) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = first_key + 8 * first_tile + lane % 4 * 2;
  const uint32_t counts = kAll ? ~0u : KeyBits<kTiles, kStep>(h, first);
  const float factor = f.scale * kLog2E;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int end = rows.query[half] < f.length ? static_cast<int>(h.keys) - first : 0;
    if (f.causal) {
      const int seen = rows.query[half] + 1 - first;
      end = seen < end ? seen : end;
    }
    DropFactors<kTiles, kStep> numbers;
    if (Drops(f)) numbers.Draw(f, drop, rows.query[half], first_key, first_tile);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float dropped[2], p[2], ds[2];
      numbers.Of(f, t, dropped);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * half + e;
        const bool sees = kAll || (8 * kStep * t + e < end && (counts >> (2 * t + e) & 1) != 0);
        const float exact = PowerOfTwo(scores[t][i] * factor - rows.log_sum[half]);
        const float probability = sees ? exact : 0;
        p[e] = probability * dropped[e];
        ds[e] = sees ? probability * (dropped[e] * products[t][i] - rows.delta[half]) : 0;
      }
      put(t, half, Pack<kType>(p[0], p[1]), Pack<kType>(ds[0], ds[1]));
    }
  }
}

// The same; `first_query` is the first one.
template <Type kType, typename F>
__device__ __forceinline__ void MakeWeights(const AttentionArgs& f, const Head& h,
                                            const HeadDrop& drop, const Rows& rows, int first_query,
                                            int first_key, int first_tile,
                                            const float (&scores)[kTiles][4],
                                            const float (&products)[kTiles][4], const F& put) {
  if (first_query + 16 <= f.length && SeesAll(f, h, first_query, first_key, kSide)) {
    MakeWeightsOf<kType, true>(f, h, drop, rows, first_key, first_tile, scores, products, put);
  } else {
    MakeWeightsOf<kType, false>(f, h, drop, rows, first_key, first_tile, scores, products, put);
  }
}

// out [32, kOut * 8] += the transpose of 32 columns from chunk `column` on of `weights` [kSide,
// kSide], times the columns from chunk `first` on of the rows of `right`.
template <Type kType, int kDepth, int kOut>
__device__ __forceinline__ void AddTransposed(const MatrixTile<kSide>& weights, int column,
                                              const MatrixTile<kDepth>& right, int first,
                                              float (&out)[2][kOut][4]) {
  const int lane = FreshLane();
#pragma unroll
  for (int row = 0; row < kSide; row += 16) {
    uint32_t a[2][4];
#pragma unroll
    for (int band = 0; band < 2; ++band) {
      weights.LeftTransposed(row, column + 2 * band, a[band], lane);
    }
#pragma unroll
    for (int chunk = 0; chunk < kOut; chunk += 2) {
      uint32_t b[4];
      right.Right(row, first + chunk, b, lane);
#pragma unroll
      for (int band = 0; band < 2; ++band) {
        MultiplyAdd<kType>(out[band][chunk], a[band], b[0], b[1]);
        MultiplyAdd<kType>(out[band][chunk + 1], a[band], b[2], b[3]);
      }
    }
  }
}

// Two tiles of kSide rows that are loaded together, kStages times; stage 1 fills while 0 is read.
template <int kDepth, int kStages>
struct Pairs {
  static constexpr int kTile = kSide * kDepth;
  __device__ __forceinline__ MatrixTile<kDepth> First(int number) const {
    return {data + number % kStages * 2 * kTile};
  }
  __device__ __forceinline__ MatrixTile<kDepth> Second(int number) const {
    return {data + number % kStages * 2 * kTile + kTile};
  }
  uint16_t* data;
};

// dk and dv of kSide keys.
template <Type kType, int kDepth, int kStages>
__global__ void __launch_bounds__(kMatrixThreads) MatrixKeysKernel(AttentionBackwardArgs args) {
  constexpr int kTile = kSide * kDepth;
  constexpr bool kAgain = kDepth > 64;  // where registers are scarce
  const AttentionArgs& f = args.forward;
  const MatrixTile<kDepth> keys{SharedMemory()}, values{keys.data + kTile};
  const Pairs<kDepth, kStages> pairs{values.data + kTile};  // of queries and dy
  const MatrixTile<kSide> p{pairs.data + 2 * kStages * kTile}, ds{p.data + kSide * kSide};
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const HeadViews views(args, h);
  const HeadDrop drop = HeadDropOf(f, h);
  const int first_key = static_cast<int>(blockIdx.x) * kSide;
  const int length = static_cast<int>(f.length);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto load = [&](int number, int first_query) {
    pairs.First(number).template Load<kSide, kMatrixThreads, kAgain>(views.q, f.stride, first_query,
                                                                     f.length, f.depth);
    pairs.Second(number).template Load<kSide, kMatrixThreads, kAgain>(
        views.dy, f.width, first_query, f.length, f.depth);
  };
  keys.template Load<kSide>(views.k, f.stride, first_key, f.length, f.depth);
  values.template Load<kSide>(views.v, f.stride, first_key, f.length, f.depth);
  // With a causal mask the queries before the tile see none of its keys; keys that do not count
  // are seen by none.
  int first_query = f.causal ? first_key : 0;
  if (first_key >= h.keys) first_query = length;
  load(0, first_query);
  CommitCopies();
  // Half of the tile's queries and every second tile of keys; then half of the keys and of the
  // depth.
  const int first_row = warp / 2 * 32, part = warp % 2;
  float dk[2][kDepth / 16][4], dv[2][kDepth / 16][4];
  Clear(dk);
  Clear(dv);
  for (int number = 0; first_query < length; first_query += kSide, ++number) {
    WaitForCopies();
    __syncthreads();  // this tile is there, and the last one is no longer read
    if (kStages > 1 && first_query + kSide < length) load(number + 1, first_query + kSide);
    CommitCopies();
    const MatrixTile<kDepth> queries = pairs.First(number), dy = pairs.Second(number);
    // Both bands of 16 queries at once, where there are registers for it.
    constexpr int kAtOnce = kDepth <= 64 ? 2 : 1;
#pragma unroll
    for (int first_band = 0; first_band < 2; first_band += kAtOnce) {
      const int bands_row = first_row + 16 * first_band;
      float scores[kAtOnce][kTiles][4], products[kAtOnce][kTiles][4];
      MakeProducts<kType, kStep>(queries, bands_row, keys, scores, part);
      MakeProducts<kType, kStep>(dy, bands_row, values, products, part);
#pragma unroll
      for (int band = 0; band < kAtOnce; ++band) {
        const int band_row = bands_row + 16 * band;
        const Rows rows = RowsOf(args, h, first_query + band_row);
        MakeWeights<kType>(
            f, h, drop, rows, first_query + band_row, first_key, part, scores[band], products[band],
            [&](int t, int half, uint32_t probabilities, uint32_t gradients) {
              const int lane = FreshLane(), column = lane % 4 * 2;
              const int row = band_row + 8 * half + lane / 4;
              const int chunk = kStep * t + part;
              *reinterpret_cast<uint32_t*>(p.At(row, chunk) + column) = probabilities;
              *reinterpret_cast<uint32_t*>(ds.At(row, chunk) + column) = gradients;
            });
      }
    }
    __syncthreads();  // all rows of the weights are there
    AddTransposed<kType>(p, first_row / 8, dy, part * kDepth / 16, dv);
    AddTransposed<kType>(ds, first_row / 8, queries, part * kDepth / 16, dk);
    if (kStages == 1) {
      __syncthreads();  // the only stage is no longer read
      if (first_query + kSide < length) load(0, first_query + kSide);
      CommitCopies();
    }
  }
  WaitForCopies();
  const int column = part * kDepth / 2;
  StoreGradient(f, args.dk, views.offset, first_key + first_row, column, f.scale, dk);
  StoreGradient(f, args.dv, views.offset, first_key + first_row, column, 1, dv);
}

// dq of as many queries as the block's warps have in kBands bands each.
template <Type kType, int kDepth, int kStages, int kBands>
__global__ void __launch_bounds__(kMatrixThreads) MatrixQueriesKernel(AttentionBackwardArgs args) {
  constexpr int kRows = 16 * kBands, kQueries = kMatrixWarps * kRows;
  const AttentionArgs& f = args.forward;
  const MatrixTile<kDepth> queries{SharedMemory()}, dy{queries.data + kQueries * kDepth};
  const Pairs<kDepth, kStages> pairs{dy.data + kQueries * kDepth};  // of keys and values
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const HeadViews views(args, h);
  const HeadDrop drop = HeadDropOf(f, h);
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int first_row = first_query + warp_row;
  const auto load = [&](int number, int first_key) {
    pairs.First(number).template Load<kSide>(views.k, f.stride, first_key, f.length, f.depth);
    pairs.Second(number).template Load<kSide>(views.v, f.stride, first_key, f.length, f.depth);
  };
  queries.template Load<kQueries>(views.q, f.stride, first_query, f.length, f.depth);
  dy.template Load<kQueries>(views.dy, f.width, first_query, f.length, f.depth);
  load(0, 0);
  CommitCopies();
  Rows rows[kBands];
#pragma unroll
  for (int band = 0; band < kBands; ++band) rows[band] = RowsOf(args, h, first_row + 16 * band);
  int end = static_cast<int>(h.keys);
  if (f.causal && first_query + kQueries < end) end = first_query + kQueries;
  float dq[kBands][kDepth / 8][4];
  Clear(dq);
  int number = 0;
  for (int first_key = 0; first_key < end; first_key += kSide, ++number) {
    WaitForCopies();
    __syncthreads();  // this tile is there, and the last one is no longer read
    if (kStages > 1 && first_key + kSide < end) load(number + 1, first_key + kSide);
    CommitCopies();
    const MatrixTile<kDepth> keys = pairs.First(number), values = pairs.Second(number);
    // Of the whole warp alike.
    const bool works = first_row < f.length && (!f.causal || first_key < first_row + kRows);
#pragma unroll 1
    for (int part = 0; part < kStep && works; ++part) {
      float scores[kBands][kTiles][4], products[kBands][kTiles][4];
      MakeProducts<kType, kStep>(queries, warp_row, keys, scores, part);
      MakeProducts<kType, kStep>(dy, warp_row, values, products, part);
      uint32_t ds[kBands][kTiles][2];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        MakeWeights<kType>(
            f, h, drop, rows[band], first_row + 16 * band, first_key, part, scores[band],
            products[band],
            [&](int t, int half, uint32_t, uint32_t gradients) { ds[band][t][half] = gradients; });
      }
      AddWeighted<kType, kStep>(ds, keys, dq, part);
    }
    if (kStages == 1) {
      __syncthreads();  // the only stage is no longer read
      if (first_key + kSide < end) load(0, first_key + kSide);
      CommitCopies();
    }
  }
  WaitForCopies();
  StoreGradient(f, args.dq, views.offset, first_row, 0, f.scale, dq);
}

template <Type kType, int kDepth, int kStages, int kBands>
Code LaunchMatrix(const AttentionBackwardArgs& args, Stream stream) {
  const AttentionArgs& f = args.forward;
  constexpr int kQueries = 16 * kBands * kMatrixWarps;
  const size_t pairs = 2 * kStages * kSide * kDepth * sizeof(uint16_t);
  const size_t own = 2 * kSide * kDepth * sizeof(uint16_t);
  const size_t weights = 2 * kSide * kSide * sizeof(uint16_t);
  const Code code = LaunchShared(MatrixKeysKernel<kType, kDepth, kStages>,
                                 Grid(DivideUp(f.length, kSide), f.heads, f.batch), kMatrixThreads,
                                 pairs + own + weights, stream, args);
  if (code != 0) return code;
  return LaunchShared(MatrixQueriesKernel<kType, kDepth, kStages, kBands>,
                      Grid(DivideUp(f.length, kQueries), f.heads, f.batch), kMatrixThreads,
                      pairs + 2 * kQueries * kDepth * sizeof(uint16_t), stream, args);
}

template <Type kType>
Code LaunchDepth(const AttentionBackwardArgs& args, Stream stream) {
  const int64_t depth = args.forward.depth;
  if (depth <= 32) return LaunchMatrix<kType, 32, 2, 2>(args, stream);
  if (depth <= 64) return LaunchMatrix<kType, 64, 2, 2>(args, stream);
  return LaunchMatrix<kType, 128, 1, 1>(args, stream);  // two blocks on a multiprocessor
}

}  // namespace

bool AttentionBackwardFitsTensorCores(const AttentionBackwardArgs& args) {
  return FitsTensorCores(args.forward) && args.dy.type == args.forward.q.type &&
         MovesInChunks(args.dy, args.forward.width) && StoresPairs(args.dq) &&
         StoresPairs(args.dk) && StoresPairs(args.dv);
}

Code LaunchMatrixAttentionBackward(const AttentionBackwardArgs& args, Stream stream) {
  return args.forward.q.type == Type::kBF16 ? LaunchDepth<Type::kBF16>(args, stream)
                                            : LaunchDepth<Type::kF16>(args, stream);
}

}  // namespace lockstep::engine::cuda
