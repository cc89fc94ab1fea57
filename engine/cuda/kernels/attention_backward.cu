// SPDX-License-Identifier: Apache-2.0
// Attention backward, in fp32. With P the probabilities, m their dropout and D = m P:
//   dv = D^T dy;  ds = P (m dy v^T - rowsum(dy y));  dq = ds k scale;  dk = ds^T q scale.
// A block owns a tile of keys for dk and dv, or a tile of queries for dq, and goes through the
// other ones in order: every sum has one owner. Probabilities are made again from the sums'
// logarithms. What tensor cores can do is attention_matrix_backward.cu's.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_tiles.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kDeltaThreads = 128;

// delta = rowsum(dy y), a warp for each row of each head, or eight lanes that move eight elements
// each.
template <bool kEight>
__global__ void __launch_bounds__(kDeltaThreads) DeltaKernel(AttentionBackwardArgs args) {
  constexpr int kLanes = kEight ? 8 : kWarp;
  const AttentionArgs& f = args.forward;
  const int64_t row = (int64_t{blockIdx.x} * kDeltaThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool inside = row < f.batch * f.heads * f.queries;
  float sum = 0;
  if (inside) {
    const int64_t unit = row / f.queries, query = row % f.queries;
    const int64_t at = (unit / f.heads * f.queries + query) * f.width + unit % f.heads * f.depth;
    if constexpr (kEight) {
      for (int64_t d = lane * 8; d < f.depth; d += kLanes * 8) {
        const Eight dy = LoadEight(args.dy, at + d), y = LoadEight(f.y, at + d);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += dy.x[e] * y.x[e];
      }
    } else {
      for (int64_t d = lane; d < f.depth; d += kLanes) {
        sum += Load(args.dy, at + d) * Load(f.y, at + d);
      }
    }
  }
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  if (inside && lane == 0) args.delta[row] = sum;
}

// Tiles of kSide queries and kSide keys in shared memory.
template <int kDepth, int kSide, int kThreads>
struct Tiles {
  float q[kSide][kDepth + 1];  // scaled
  float k[kSide][kDepth + 1];
  float v[kSide][kDepth + 1];
  float dy[kSide][kDepth + 1];
  float p[kSide][kSide + 1];  // D
  float ds[kSide][kSide + 1];
};

// Fills p and ds from the tiles of q, k, v and dy. A thread has one key and several queries.
template <int kDepth, int kSide, int kThreads>
__device__ __forceinline__ void MakeScores(const AttentionBackwardArgs& args, const Head& h,
                                           const Site& site, int64_t first_query, int64_t first_key,
                                           Tiles<kDepth, kSide, kThreads>& t) {
  constexpr int kStep = kThreads / kSide, kRows = kSide / kStep;
  const AttentionArgs& f = args.forward;
  const int key = static_cast<int>(threadIdx.x) % kSide;
  const int first = static_cast<int>(threadIdx.x) / kSide;
  float s[kRows], dp[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) s[r] = dp[r] = 0;
#pragma unroll 4
  for (int d = 0; d < kDepth; ++d) {
    const float k = t.k[key][d], v = t.v[key][d];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      s[r] += t.q[first + kStep * r][d] * k;
      dp[r] += t.dy[first + kStep * r][d] * v;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first + kStep * r;
    const int64_t query = first_query + row;
    float p = 0, ds = 0;
    if (Sees(f, h, query, first_key + key)) {
      const int64_t at = h.unit * f.queries + query;
      const float probability = expf(s[r] - Load(f.log_sums, at));
      float factor = 1;
      if (f.drop.address != nullptr) factor = DropFactor(f, h, site, query, first_key + key);
      p = probability * factor;
      ds = probability * (factor * dp[r] - args.delta[at]);
    }
    t.p[row][key] = p;
    t.ds[row][key] = ds;
  }
}

template <int kDepth, int kSide, int kThreads>
__global__ void __launch_bounds__(kThreads) KeysKernel(AttentionBackwardArgs args) {
  constexpr int kOut = kSide * kDepth / kThreads;
  __shared__ Tiles<kDepth, kSide, kThreads> t;
  const AttentionArgs& f = args.forward;
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const int64_t offset = h.sample * f.length * f.stride + h.head * f.depth;
  const int64_t q_offset = h.sample * f.queries * f.stride + h.head * f.depth;
  const int64_t out_offset = h.sample * f.queries * f.width + h.head * f.depth;
  const int64_t first_key = int64_t{blockIdx.x} * kSide;
  Site site = {};
  if (f.drop.address != nullptr) site = SiteOf(f.drop);
  LoadTile<kThreads, kSide, kDepth>(f.k, offset, f.stride, first_key, f.length, f.depth, 1, t.k);
  LoadTile<kThreads, kSide, kDepth>(f.v, offset, f.stride, first_key, f.length, f.depth, 1, t.v);
  float dk[kOut], dv[kOut];
#pragma unroll
  for (int i = 0; i < kOut; ++i) dk[i] = dv[i] = 0;
  // With a causal mask the queries before the tile see none of its keys.
  for (int64_t first_query = f.causal ? first_key : 0; first_query < f.queries;
       first_query += kSide) {
    __syncthreads();  // the last tiles are no longer read
    LoadTile<kThreads, kSide, kDepth>(f.q, q_offset, f.stride, first_query, f.queries, f.depth,
                                      f.scale, t.q);
    LoadTile<kThreads, kSide, kDepth>(args.dy, out_offset, f.width, first_query, f.queries, f.depth,
                                      1, t.dy);
    __syncthreads();
    MakeScores(args, h, site, first_query, first_key, t);
    __syncthreads();
#pragma unroll 2
    for (int q = 0; q < kSide; ++q) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        const int element = static_cast<int>(threadIdx.x) + kThreads * i;
        const int key = element / kDepth, d = element % kDepth;
        dv[i] += t.p[q][key] * t.dy[q][d];
        dk[i] += t.ds[q][key] * t.q[q][d];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOut; ++i) {
    const int element = static_cast<int>(threadIdx.x) + kThreads * i;
    const int64_t key = first_key + element / kDepth;
    const int d = element % kDepth;
    if (key >= f.length || d >= f.depth) continue;
    Store(args.dk, offset + key * f.stride + d, dk[i]);
    Store(args.dv, offset + key * f.stride + d, dv[i]);
  }
}

template <int kDepth, int kSide, int kThreads>
__global__ void __launch_bounds__(kThreads) QueriesKernel(AttentionBackwardArgs args) {
  constexpr int kOut = kSide * kDepth / kThreads;
  __shared__ Tiles<kDepth, kSide, kThreads> t;
  const AttentionArgs& f = args.forward;
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const int64_t offset = h.sample * f.length * f.stride + h.head * f.depth;
  const int64_t q_offset = h.sample * f.queries * f.stride + h.head * f.depth;
  const int64_t out_offset = h.sample * f.queries * f.width + h.head * f.depth;
  const int64_t first_query = int64_t{blockIdx.x} * kSide;
  Site site = {};
  if (f.drop.address != nullptr) site = SiteOf(f.drop);
  LoadTile<kThreads, kSide, kDepth>(f.q, q_offset, f.stride, first_query, f.queries, f.depth,
                                    f.scale, t.q);
  LoadTile<kThreads, kSide, kDepth>(args.dy, out_offset, f.width, first_query, f.queries, f.depth,
                                    1, t.dy);
  float dq[kOut];
#pragma unroll
  for (int i = 0; i < kOut; ++i) dq[i] = 0;
  int64_t end = h.keys;
  if (f.causal && first_query + kSide < end) end = first_query + kSide;
  for (int64_t first_key = 0; first_key < end; first_key += kSide) {
    __syncthreads();
    LoadTile<kThreads, kSide, kDepth>(f.k, offset, f.stride, first_key, f.length, f.depth, 1, t.k);
    LoadTile<kThreads, kSide, kDepth>(f.v, offset, f.stride, first_key, f.length, f.depth, 1, t.v);
    __syncthreads();
    MakeScores(args, h, site, first_query, first_key, t);
    __syncthreads();
#pragma unroll 2
    for (int key = 0; key < kSide; ++key) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        const int element = static_cast<int>(threadIdx.x) + kThreads * i;
        dq[i] += t.ds[element / kDepth][key] * t.k[key][element % kDepth];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOut; ++i) {
    const int element = static_cast<int>(threadIdx.x) + kThreads * i;
    const int64_t query = first_query + element / kDepth;
    const int d = element % kDepth;
    if (query >= f.queries || d >= f.depth) continue;
    Store(args.dq, q_offset + query * f.stride + d, dq[i] * f.scale);
  }
}

template <int kDepth, int kSide, int kThreads>
Code LaunchTiles(const AttentionBackwardArgs& args, Stream stream) {
  const AttentionArgs& f = args.forward;
  const dim3 grid = Grid(DivideUp(f.length, kSide), f.heads, f.batch);
  const dim3 queries = Grid(DivideUp(f.queries, kSide), f.heads, f.batch);
  const Code code = Launch(KeysKernel<kDepth, kSide, kThreads>, grid, kThreads, stream, args);
  if (code != 0) return code;
  return Launch(QueriesKernel<kDepth, kSide, kThreads>, queries, kThreads, stream, args);
}

}  // namespace

Code LaunchAttentionBackward(const AttentionBackwardArgs& args, Stream stream) {
  if (AttentionBackwardFitsWarpgroups(args)) return LaunchGroupAttentionBackward(args, stream);
  const AttentionArgs& f = args.forward;
  const int64_t rows = f.batch * f.heads * f.queries;
  const bool eight =
      f.depth % 8 == 0 && f.width % 8 == 0 && AlignedEight(args.dy) && AlignedEight(f.y);
  const Code code = eight ? Launch(DeltaKernel<true>, Grid(DivideUp(rows * 8, kDeltaThreads)),
                                   kDeltaThreads, stream, args)
                          : Launch(DeltaKernel<false>, Grid(DivideUp(rows * kWarp, kDeltaThreads)),
                                   kDeltaThreads, stream, args);
  if (code != 0) return code;
  if (AttentionBackwardFitsTensorCores(args)) return LaunchMatrixAttentionBackward(args, stream);
  if (f.depth <= 64) return LaunchTiles<64, 32, 128>(args, stream);
  if (f.depth <= 128) return LaunchTiles<128, 16, 128>(args, stream);
  return LaunchTiles<256, 8, 64>(args, stream);
}

}  // namespace lockstep::engine::cuda
