// SPDX-License-Identifier: Apache-2.0
// Attention forward: tiles of queries against tiles of keys with running sums (T. Dao et al.,
// "FlashAttention", 2022), all in fp32. A block owns a tile of queries of one head; its keys come
// in order. What tensor cores can do is attention_matrix.cu's.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_tiles.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAcross = 8;  // threads that share a row
constexpr int kDown = kThreads / kAcross;

__device__ __forceinline__ float SumAcross(float x) {
#pragma unroll
  for (int lanes = kAcross / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
  return x;
}
__device__ __forceinline__ float MaxAcross(float x) {
#pragma unroll
  for (int lanes = kAcross / 2; lanes > 0; lanes /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lanes));
  }
  return x;
}

// kQueries x kKeys scores at a time, heads of up to kDepth columns. A thread has rows down * kRows
// + r and columns across + 8 c.
template <int kDepth, int kQueries, int kKeys>
__global__ void __launch_bounds__(kThreads) AttentionKernel(AttentionArgs args) {
  constexpr int kRows = kQueries / kDown, kColumns = kKeys / kAcross, kOut = kDepth / kAcross;
  __shared__ float queries[kQueries][kDepth];
  __shared__ float tile[kKeys][kDepth + 1];  // of keys, then of values
  __shared__ float scores[kQueries][kKeys + 1];
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int down = static_cast<int>(threadIdx.x) / kAcross;
  const Head h = HeadOf(args, blockIdx.z, blockIdx.y);
  const int64_t offset = h.sample * args.length * args.stride + h.head * args.depth;
  const int64_t q_offset = h.sample * args.queries * args.stride + h.head * args.depth;
  const int64_t first_query = int64_t{blockIdx.x} * kQueries;
  const bool drops = args.drop.address != nullptr;
  Site site = {};
  if (drops) site = SiteOf(args.drop);
  LoadTile<kThreads, kQueries, kDepth>(args.q, q_offset, args.stride, first_query, args.queries,
                                       args.depth, args.scale, queries);
  float most[kRows], sum[kRows], out[kRows][kOut];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    most[r] = -INFINITY;
    sum[r] = 0;
#pragma unroll
    for (int c = 0; c < kOut; ++c) out[r][c] = 0;
  }
  int64_t end = h.keys;
  if (args.causal && first_query + kQueries < end) end = first_query + kQueries;
  for (int64_t first_key = 0; first_key < end; first_key += kKeys) {
    __syncthreads();  // the last tile is no longer read
    LoadTile<kThreads, kKeys, kDepth>(args.k, offset, args.stride, first_key, args.length,
                                      args.depth, 1, tile);
    __syncthreads();
    float s[kRows][kColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[r][c] = 0;
    }
#pragma unroll 4
    for (int d = 0; d < kDepth; ++d) {
      float k[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) k[c] = tile[across + kAcross * c][d];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float q = queries[down * kRows + r][d];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[r][c] += q * k[c];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t query = first_query + down * kRows + r;
      float next = most[r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int64_t key = first_key + across + kAcross * c;
        if (!Sees(args, h, query, key)) s[r][c] = -INFINITY;
        next = fmaxf(next, s[r][c]);
      }
      next = MaxAcross(next);
      // Before the first key that is seen there is nothing to scale.
      const float fade = next == -INFINITY ? 1 : expf(most[r] - next);
      float part = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float p = s[r][c] == -INFINITY ? 0 : expf(s[r][c] - next);
        part += p;
        if (drops && p != 0) {
          p *= DropFactor(args, h, site, query, first_key + across + kAcross * c);
        }
        scores[down * kRows + r][across + kAcross * c] = p;
      }
      sum[r] = sum[r] * fade + SumAcross(part);
      most[r] = next;
#pragma unroll
      for (int c = 0; c < kOut; ++c) out[r][c] *= fade;
    }
    __syncthreads();  // the keys are no longer read
    LoadTile<kThreads, kKeys, kDepth>(args.v, offset, args.stride, first_key, args.length,
                                      args.depth, 1, tile);
    __syncthreads();
#pragma unroll 2
    for (int k = 0; k < kKeys; ++k) {
      float v[kOut];
#pragma unroll
      for (int c = 0; c < kOut; ++c) v[c] = tile[k][across + kAcross * c];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float p = scores[down * kRows + r][k];
#pragma unroll
        for (int c = 0; c < kOut; ++c) out[r][c] += p * v[c];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t query = first_query + down * kRows + r;
    if (query >= args.queries) continue;
    const float factor = sum[r] > 0 ? 1.0f / sum[r] : 0;
    const int64_t row = (h.sample * args.queries + query) * args.width + h.head * args.depth;
#pragma unroll
    for (int c = 0; c < kOut; ++c) {
      const int column = across + kAcross * c;
      if (column < args.depth) Store(args.y, row + column, out[r][c] * factor);
    }
    if (across == 0) {
      const float log_sum = sum[r] > 0 ? most[r] + logf(sum[r]) : 0;
      Store(args.log_sums, h.unit * args.queries + query, log_sum);
    }
  }
}

template <int kDepth, int kQueries, int kKeys>
Code LaunchTiles(const AttentionArgs& args, Stream stream) {
  return Launch(AttentionKernel<kDepth, kQueries, kKeys>,
                Grid(DivideUp(args.queries, kQueries), args.heads, args.batch), kThreads, stream,
                args);
}

// ---- one new position ----

// The new row among those that are kept.
__global__ void __launch_bounds__(kThreads) KeepKernel(AttentionStepArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t half = args.positions * args.width;
  if (i >= 2 * half) return;
  const int64_t at = i % half / args.width, column = i % args.width;
  for (int64_t row = args.rows; row-- > 0;) {  // the last one of a position counts
    if (at != args.position[row]) continue;
    args.kept[i] = Load(args.qkv, (3 * row + 1 + i / half) * args.width + column);
    return;
  }
  if (args.kept != args.before.data) args.kept[i] = Load(args.before, i);
}

// A block for each head, row by row.
__global__ void __launch_bounds__(kThreads) StepKernel(AttentionStepArgs args) {
  __shared__ float shared[kThreads / kWarp];
  const int64_t depth = args.width / args.heads, at = blockIdx.x * depth;
  float* scores = args.scores + blockIdx.x * args.positions;
  const float* keys = args.kept + at;
  const float* values = keys + args.positions * args.width;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t q = 3 * row * args.width + at, y = row * args.width + at;
    const int64_t position = args.position[row];
    if (position < 0 || position >= args.positions) {
      for (int64_t d = threadIdx.x; d < depth; d += kThreads) Store(args.y, y + d, 0);
      continue;
    }
    float most = -INFINITY;
    for (int64_t i = threadIdx.x; i <= position; i += kThreads) {
      float dot = 0;
      for (int64_t d = 0; d < depth; ++d) dot += Load(args.qkv, q + d) * keys[i * args.width + d];
      scores[i] = dot * args.scale;
      most = fmaxf(most, scores[i]);
    }
    most = BlockMax<kThreads>(most, shared);
    float sum = 0;
    for (int64_t i = threadIdx.x; i <= position; i += kThreads) {
      scores[i] = expf(scores[i] - most);
      sum += scores[i];
    }
    const float factor = 1.0f / BlockSum<kThreads>(sum, shared);  // and all scores are written
    for (int64_t d = threadIdx.x; d < depth; d += kThreads) {
      float out = 0;
      for (int64_t i = 0; i <= position; ++i) out += scores[i] * values[i * args.width + d];
      Store(args.y, y + d, out * factor);
    }
    __syncthreads();  // all have read the scores
  }
}

}  // namespace

Code LaunchAttention(const AttentionArgs& args, Stream stream) {
  if (AttentionFitsWarpgroups(args)) return LaunchGroupAttention(args, stream);
  if (args.kept != nullptr) {
    const Code code = LaunchKeptBits(args, stream);
    if (code != 0) return code;
  }
  if (AttentionFitsTensorCores(args)) return LaunchMatrixAttention(args, stream);
  if (args.depth <= 64) return LaunchTiles<64, 64, 32>(args, stream);
  if (args.depth <= 128) return LaunchTiles<128, 32, 32>(args, stream);
  return LaunchTiles<256, 16, 16>(args, stream);
}

Code LaunchAttentionStep(const AttentionStepArgs& args, Stream stream) {
  const int64_t kept = 2 * args.positions * args.width;
  const Code code = Launch(KeepKernel, Grid(DivideUp(kept, kThreads)), kThreads, stream, args);
  return code != 0 ? code : Launch(StepKernel, Grid(args.heads), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
