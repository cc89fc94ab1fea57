// SPDX-License-Identifier: Apache-2.0
// Attention forward on tensor cores, in 16 bits with fp32 sums: attention.cu's algorithm (T. Dao et
// al., "FlashAttention", 2022) with scores and probabilities in registers. A warp owns rows of
// queries; the block's keys and values come through shared memory in order. Probabilities are
// rounded to 16 bits before they meet the values.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_softmax.h"

namespace lockstep::engine::cuda {
namespace {

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
  BeginRows(running, out);
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
      const Place place = {static_cast<int>(first_row), static_cast<int>(first_key)};
      MaskScores(args, h, place, scores);
      Soften<kType>(args, Drops(args), drop, place, scores, running, out, weights);
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
