// SPDX-License-Identifier: Apache-2.0
// Attention backward on tensor cores, in 16 bits with fp32 sums: attention_backward.cu's formulas.
// Scores are made twice, once by the owners of keys (dk and dv) and once by those of queries (dq),
// so that every sum has one owner and one order. In the first kernel a warp makes the scores of 16
// queries and then owns 16 keys: the block's probabilities change hands in shared memory.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_matrix.h"

namespace lockstep::engine::cuda {
namespace {

// Queries and keys of a tile; a warp has 16 of them.
constexpr int kSide = 16 * kMatrixWarps;
constexpr int kTiles = kSide / 8;

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

// From scores and the products dy v^T of 16 queries by kSide keys: `put(tile, half, p, ds)` gets
// pairs of dropped probabilities and of the gradients of scores.
template <Type kType, typename F>
__device__ __forceinline__ void MakeWeights(const AttentionArgs& f, const Head& h, const Rows& rows,
                                            int first_key, const float (&scores)[1][kTiles][4],
                                            const float (&products)[1][kTiles][4], const F& put) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = first_key + lane % 4 * 2;
  const uint32_t counts = KeyBits<kTiles>(h, first);
  const float factor = f.scale * kLog2E;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int end = rows.query[half] < f.length ? static_cast<int>(h.keys) - first : 0;
    if (f.causal) {
      const int seen = rows.query[half] + 1 - first;
      end = seen < end ? seen : end;
    }
    DropFactors<kTiles> drop;
    if (f.drop.address != nullptr) drop.Draw(f, h, rows.query[half], first_key);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float dropped[2], p[2], ds[2];
      drop.Of(t, dropped);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * half + e;
        const bool sees = 8 * t + e < end && (counts >> (2 * t + e) & 1) != 0;
        const float exact = PowerOfTwo(scores[0][t][i] * factor - rows.log_sum[half]);
        const float probability = sees ? exact : 0;
        p[e] = probability * dropped[e];
        ds[e] = sees ? probability * (dropped[e] * products[0][t][i] - rows.delta[half]) : 0;
      }
      put(t, half, Pack<kType>(p[0], p[1]), Pack<kType>(ds[0], ds[1]));
    }
  }
}

// out [16, kDepth] += the transpose of 16 columns from chunk `column` on of `weights` [kSide,
// kSide], times the rows of `right`.
template <Type kType, int kDepth>
__device__ __forceinline__ void AddTransposed(const MatrixTile<kSide>& weights, int column,
                                              const MatrixTile<kDepth>& right,
                                              float (&out)[kDepth / 8][4]) {
  const int lane = FreshLane();
#pragma unroll
  for (int row = 0; row < kSide; row += 16) {
    uint32_t a[4];
    weights.LeftTransposed(row, column, a, lane);
#pragma unroll
    for (int chunk = 0; chunk < kDepth / kChunk; chunk += 2) {
      uint32_t b[4];
      right.Right(row, chunk, b, lane);
      MultiplyAdd<kType>(out[chunk], a, b[0], b[1]);
      MultiplyAdd<kType>(out[chunk + 1], a, b[2], b[3]);
    }
  }
}

template <int kDepth>
__device__ __forceinline__ void Clear(float (&out)[kDepth][4]) {
#pragma unroll
  for (int c = 0; c < kDepth; ++c) out[c][0] = out[c][1] = out[c][2] = out[c][3] = 0;
}

// Rows [first_row, first_row + 16) of a gradient, times `factor`.
template <int kOut>
__device__ __forceinline__ void StoreGradient(const AttentionArgs& f, const View& view,
                                              int64_t offset, int64_t first_row, float factor,
                                              const float (&out)[kOut][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + 8 * half + lane / 4;
    if (row >= f.length) continue;
#pragma unroll
    for (int c = 0; c < kOut; ++c) {
      const int column = 8 * c + lane % 4 * 2;
      if (column >= f.depth) continue;
      StorePair(view, offset + row * f.stride + column, out[c][2 * half] * factor,
                out[c][2 * half + 1] * factor);
    }
  }
}

// One head's data.
struct HeadViews {
  __device__ __forceinline__ HeadViews(const AttentionBackwardArgs& args, const Head& h)
      : offset(h.sample * args.forward.length * args.forward.stride + h.head * args.forward.depth),
        q(HeadData(args.forward.q, offset)),
        k(HeadData(args.forward.k, offset)),
        v(HeadData(args.forward.v, offset)),
        dy(HeadData(args.dy, h.sample * args.forward.length * args.forward.width +
                                 h.head * args.forward.depth)) {}
  int64_t offset;
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  const uint16_t* dy;
};

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
  const AttentionArgs& f = args.forward;
  const MatrixTile<kDepth> keys{SharedMemory()}, values{keys.data + kTile};
  const Pairs<kDepth, kStages> pairs{values.data + kTile};  // of queries and dy
  const MatrixTile<kSide> p{pairs.data + 2 * kStages * kTile}, ds{p.data + kSide * kSide};
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const HeadViews views(args, h);
  const int first_key = static_cast<int>(blockIdx.x) * kSide;
  const int length = static_cast<int>(f.length);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto load = [&](int number, int first_query) {
    pairs.First(number).template Load<kSide>(views.q, f.stride, first_query, f.length, f.depth);
    pairs.Second(number).template Load<kSide>(views.dy, f.width, first_query, f.length, f.depth);
  };
  keys.template Load<kSide>(views.k, f.stride, first_key, f.length, f.depth);
  values.template Load<kSide>(views.v, f.stride, first_key, f.length, f.depth);
  // With a causal mask the queries before the tile see none of its keys; keys that do not count
  // are seen by none.
  int first_query = f.causal ? first_key : 0;
  if (first_key >= h.keys) first_query = length;
  load(0, first_query);
  CommitCopies();
  float dk[kDepth / 8][4], dv[kDepth / 8][4];
  Clear(dk);
  Clear(dv);
  for (int number = 0; first_query < length; first_query += kSide, ++number) {
    WaitForCopies();
    __syncthreads();  // this tile is there, and the last one is no longer read
    if (kStages > 1 && first_query + kSide < length) load(number + 1, first_query + kSide);
    CommitCopies();
    const MatrixTile<kDepth> queries = pairs.First(number), dy = pairs.Second(number);
    {
      float scores[1][kTiles][4], products[1][kTiles][4];
      MakeProducts<kType>(queries, 16 * warp, keys, scores);
      MakeProducts<kType>(dy, 16 * warp, values, products);
      const Rows rows = RowsOf(args, h, first_query + 16 * warp);
      MakeWeights<kType>(
          f, h, rows, first_key, scores, products,
          [&](int t, int half, uint32_t probabilities, uint32_t gradients) {
            const int lane = FreshLane(), row = 16 * warp + lane / 4, column = lane % 4 * 2;
            *reinterpret_cast<uint32_t*>(p.At(row + 8 * half, t) + column) = probabilities;
            *reinterpret_cast<uint32_t*>(ds.At(row + 8 * half, t) + column) = gradients;
          });
    }
    __syncthreads();  // all rows of the weights are there
    AddTransposed<kType>(p, 2 * warp, dy, dv);
    AddTransposed<kType>(ds, 2 * warp, queries, dk);
    if (kStages == 1) {
      __syncthreads();  // the only stage is no longer read
      if (first_query + kSide < length) load(0, first_query + kSide);
      CommitCopies();
    }
  }
  WaitForCopies();
  StoreGradient(f, args.dk, views.offset, first_key + 16 * warp, f.scale, dk);
  StoreGradient(f, args.dv, views.offset, first_key + 16 * warp, 1, dv);
}

// dq of kSide queries.
template <Type kType, int kDepth, int kStages>
__global__ void __launch_bounds__(kMatrixThreads) MatrixQueriesKernel(AttentionBackwardArgs args) {
  constexpr int kTile = kSide * kDepth;
  const AttentionArgs& f = args.forward;
  const MatrixTile<kDepth> queries{SharedMemory()}, dy{queries.data + kTile};
  const Pairs<kDepth, kStages> pairs{dy.data + kTile};  // of keys and values
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const HeadViews views(args, h);
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kSide;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto load = [&](int number, int first_key) {
    pairs.First(number).template Load<kSide>(views.k, f.stride, first_key, f.length, f.depth);
    pairs.Second(number).template Load<kSide>(views.v, f.stride, first_key, f.length, f.depth);
  };
  queries.template Load<kSide>(views.q, f.stride, first_query, f.length, f.depth);
  dy.template Load<kSide>(views.dy, f.width, first_query, f.length, f.depth);
  load(0, 0);
  CommitCopies();
  const Rows rows = RowsOf(args, h, first_query + 16 * warp);
  int end = static_cast<int>(h.keys);
  if (f.causal && first_query + kSide < end) end = first_query + kSide;
  float dq[1][kDepth / 8][4];
  Clear(dq[0]);
  int number = 0;
  for (int first_key = 0; first_key < end; first_key += kSide, ++number) {
    WaitForCopies();
    __syncthreads();  // this tile is there, and the last one is no longer read
    if (kStages > 1 && first_key + kSide < end) load(number + 1, first_key + kSide);
    CommitCopies();
    const MatrixTile<kDepth> keys = pairs.First(number), values = pairs.Second(number);
    float scores[1][kTiles][4], products[1][kTiles][4];
    MakeProducts<kType>(queries, 16 * warp, keys, scores);
    MakeProducts<kType>(dy, 16 * warp, values, products);
    uint32_t ds[1][kTiles][2];
    MakeWeights<kType>(
        f, h, rows, first_key, scores, products,
        [&](int t, int half, uint32_t, uint32_t gradients) { ds[0][t][half] = gradients; });
    AddWeighted<kType>(ds, keys, dq);
    if (kStages == 1) {
      __syncthreads();  // the only stage is no longer read
      if (first_key + kSide < end) load(0, first_key + kSide);
      CommitCopies();
    }
  }
  WaitForCopies();
  StoreGradient(f, args.dq, views.offset, first_query + 16 * warp, f.scale, dq[0]);
}

template <Type kType, int kDepth, int kStages>
Code LaunchMatrix(const AttentionBackwardArgs& args, Stream stream) {
  const AttentionArgs& f = args.forward;
  const dim3 grid = Grid(DivideUp(f.length, kSide), f.heads, f.batch);
  const size_t tiles = (2 + 2 * kStages) * kSide * kDepth * sizeof(uint16_t);
  const size_t weights = 2 * kSide * kSide * sizeof(uint16_t);
  const Code code = LaunchShared(MatrixKeysKernel<kType, kDepth, kStages>, grid, kMatrixThreads,
                                 tiles + weights, stream, args);
  if (code != 0) return code;
  return LaunchShared(MatrixQueriesKernel<kType, kDepth, kStages>, grid, kMatrixThreads, tiles,
                      stream, args);
}

template <Type kType>
Code LaunchDepth(const AttentionBackwardArgs& args, Stream stream) {
  const int64_t depth = args.forward.depth;
  if (depth <= 32) return LaunchMatrix<kType, 32, 2>(args, stream);
  if (depth <= 64) return LaunchMatrix<kType, 64, 2>(args, stream);
  return LaunchMatrix<kType, 128, 1>(args, stream);  // two blocks on a multiprocessor
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
