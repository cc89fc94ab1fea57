// SPDX-License-Identifier: Apache-2.0
// Attention forward on tensor cores, in 16 bits with fp32 sums: attention.cu's algorithm (T. Dao et
// al., "FlashAttention", 2022) with scores and probabilities in registers. A warp owns rows of
// queries; the block's keys and values come through shared memory in order. Probabilities are
// rounded to 16 bits before they meet the values.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_matrix.h"

namespace lockstep::engine::cuda {
namespace {

// The running softmax of a thread's rows: of each band of 16, row lane / 4 and the one 8 below.
template <int kBands>
struct RunningSums {
  float most[kBands][2];
  float sum[kBands][2];  // of the thread's own columns
};

// A warp's rows of one tile of keys.
struct Place {
  int64_t first_row;  // of the warp's queries
  int64_t first_key;
};

// Puts -infinity where a query does not see a key.
template <int kBands, int kTiles>
__device__ __forceinline__ void MaskScores(const AttentionArgs& args, const Head& h,
                                           const Place& place, float (&scores)[kBands][kTiles][4]) {
  if (SeesAll(args, h, place.first_row, place.first_key, kTiles * 8)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_key = static_cast<int>(place.first_key), keys = static_cast<int>(h.keys);
  const int first_query = static_cast<int>(place.first_row) + lane / 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = first_key + t * 8 + lane % 4 * 2 + e;
      const bool counts = key < keys && (h.by_key == nullptr || h.by_key[key] != 0);
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = first_query + 16 * band + 8 * half;
          if (!counts || (args.causal && key > query)) scores[band][t][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

// Scores to probabilities relative to the rows' maxima so far; `out` fades with the old maxima.
template <Type kType, int kBands, int kTiles, int kOut>
__device__ __forceinline__ void Soften(const AttentionArgs& args, const HeadDrop& drop,
                                       const Place& place, float (&scores)[kBands][kTiles][4],
                                       RunningSums<kBands>& running, float (&out)[kBands][kOut][4],
                                       uint32_t (&weights)[kBands][kTiles][2]) {
  const float factor = args.scale * kLog2E;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float next = running.most[band][half];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        next = fmaxf(next, fmaxf(scores[band][t][2 * half], scores[band][t][2 * half + 1]));
      }
      next = fmaxf(next, __shfl_xor_sync(kAllLanes, next, 1));
      next = fmaxf(next, __shfl_xor_sync(kAllLanes, next, 2));
      // Before the first key that is seen there is nothing to scale.
      const float base = next == -INFINITY ? 0 : next * factor;
      const float fade =
          next == -INFINITY ? 1 : PowerOfTwo(running.most[band][half] * factor - base);
      float part = 0;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[band][t][e] = PowerOfTwo(scores[band][t][e] * factor - base);
          part += scores[band][t][e];
        }
      }
      running.sum[band][half] = running.sum[band][half] * fade + part;
      running.most[band][half] = next;
#pragma unroll
      for (int c = 0; c < kOut; ++c) {
        out[band][c][2 * half] *= fade;
        out[band][c][2 * half + 1] *= fade;
      }
      if (Drops(args)) {
        const int query = static_cast<int>(place.first_row) + 16 * band + 8 * half + lane / 4;
        DropFactors<kTiles> numbers;
        numbers.Draw(args, drop, query, static_cast<int>(place.first_key));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          bool keeps[2];
          numbers.Keep(args, t, keeps);
          scores[band][t][2 * half] = keeps[0] ? scores[band][t][2 * half] : 0;
          scores[band][t][2 * half + 1] = keeps[1] ? scores[band][t][2 * half + 1] : 0;
        }
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        weights[band][t][half] =
            Pack<kType>(scores[band][t][2 * half], scores[band][t][2 * half + 1]);
      }
    }
  }
}

// The warp's rows of y, with dropout's factor, and of the sums' logarithms.
template <int kBands, int kOut>
__device__ __forceinline__ void StoreRows(const AttentionArgs& args, const Head& h,
                                          int64_t first_row, const RunningSums<kBands>& running,
                                          const float (&out)[kBands][kOut][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = running.sum[band][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int64_t query = first_row + 16 * band + 8 * half + lane / 4;
      if (query >= args.length) continue;
      const float factor = sum > 0 ? args.drop.scale / sum : 0;
      const int64_t row = (h.sample * args.length + query) * args.width + h.head * args.depth;
#pragma unroll
      for (int c = 0; c < kOut; ++c) {
        const int column = 8 * c + lane % 4 * 2;
        if (column >= args.depth) continue;
        StorePair(args.y, row + column, out[band][c][2 * half] * factor,
                  out[band][c][2 * half + 1] * factor);
      }
      if (lane % 4 == 0) {
        const float log_sum = sum > 0 ? running.most[band][half] * args.scale + logf(sum) : 0;
        Store(args.log_sums, h.unit * args.length + query, log_sum);
      }
    }
  }
}

template <Type kType, int kDepth, int kKeys, int kBands>
__global__ void __launch_bounds__(kMatrixThreads) MatrixKernel(AttentionArgs args) {
  constexpr int kRows = 16 * kBands, kQueries = kMatrixWarps * kRows, kTiles = kKeys / 8;
  constexpr int kOut = kDepth / 8;
  const MatrixTile<kDepth> queries{SharedMemory()};
  const MatrixTile<kDepth> keys{queries.data + kQueries * kDepth};
  const MatrixTile<kDepth> values{keys.data + kKeys * kDepth};
  const Head h = HeadOf(args, blockIdx.z, blockIdx.y);
  const HeadDrop drop = HeadDropOf(args, h);
  const int64_t offset = h.sample * args.length * args.stride + h.head * args.depth;
  const uint16_t* k = HeadData(args.k, offset);
  const uint16_t* v = HeadData(args.v, offset);
  // With a causal mask the last queries have the most keys: they begin.
  const int64_t first_query = int64_t{gridDim.x - 1 - blockIdx.x} * kQueries;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kRows;
  const int64_t first_row = first_query + warp_row;
  int64_t end = h.keys;
  if (args.causal && first_query + kQueries < end) end = first_query + kQueries;

  queries.template Load<kQueries>(HeadData(args.q, offset), args.stride, first_query, args.length,
                                  args.depth);
  keys.template Load<kKeys>(k, args.stride, 0, args.length, args.depth);
  CommitCopies();
  RunningSums<kBands> running;
  float out[kBands][kOut][4];
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
    running.most[band][0] = running.most[band][1] = -INFINITY;
    running.sum[band][0] = running.sum[band][1] = 0;
#pragma unroll
    for (int c = 0; c < kOut; ++c) {
      out[band][c][0] = out[band][c][1] = out[band][c][2] = out[band][c][3] = 0;
    }
  }
  for (int64_t first_key = 0; first_key < end; first_key += kKeys) {
    WaitForCopies();
    __syncthreads();  // the keys are there, and the last values are no longer read
    values.template Load<kKeys>(v, args.stride, first_key, args.length, args.depth);
    CommitCopies();
    // Of the whole warp alike.
    const bool works = first_row < args.length && (!args.causal || first_key < first_row + kRows);
    uint32_t weights[kBands][kTiles][2];
    if (works) {
      float scores[kBands][kTiles][4];
      MakeProducts<kType>(queries, warp_row, keys, scores);
      const Place place = {first_row, first_key};
      MaskScores(args, h, place, scores);
      Soften<kType>(args, drop, place, scores, running, out, weights);
    }
    WaitForCopies();
    __syncthreads();  // the values are there, and the keys are no longer read
    if (first_key + kKeys < end) {
      keys.template Load<kKeys>(k, args.stride, first_key + kKeys, args.length, args.depth);
    }
    CommitCopies();
    if (works) AddWeighted<kType>(weights, values, out);
  }
  WaitForCopies();
  StoreRows(args, h, first_row, running, out);
}

template <Type kType, int kDepth, int kKeys>
Code LaunchMatrix(const AttentionArgs& args, Stream stream) {
  constexpr int kBands = 2, kQueries = 16 * kBands * kMatrixWarps;
  const size_t bytes = (kQueries + 2 * kKeys) * kDepth * sizeof(uint16_t);
  return LaunchShared(MatrixKernel<kType, kDepth, kKeys, kBands>,
                      Grid(DivideUp(args.length, kQueries), args.heads, args.batch), kMatrixThreads,
                      bytes, stream, args);
}

template <Type kType>
Code LaunchDepth(const AttentionArgs& args, Stream stream) {
  if (args.depth <= 32) return LaunchMatrix<kType, 32, 64>(args, stream);
  if (args.depth <= 64) return LaunchMatrix<kType, 64, 64>(args, stream);
  return LaunchMatrix<kType, 128, 32>(args, stream);
}

}  // namespace

bool AttentionFitsTensorCores(const AttentionArgs& args) {
  return FitsTensorCores(args) && StoresPairs(args.y);
}

Code LaunchMatrixAttention(const AttentionArgs& args, Stream stream) {
  return args.q.type == Type::kBF16 ? LaunchDepth<Type::kBF16>(args, stream)
                                    : LaunchDepth<Type::kF16>(args, stream);
}

}  // namespace lockstep::engine::cuda
