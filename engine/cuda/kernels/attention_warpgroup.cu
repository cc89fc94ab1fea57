// SPDX-License-Identifier: Apache-2.0
// Attention forward by warpgroups of sm_90a: attention_matrix.cu's algorithm, whose keys and values
// tensor cores read from shared memory themselves. A warpgroup owns 64 queries; while it works on
// probabilities, tensor cores work for the others of the multiprocessor.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_softmax.h"
#include "engine/cuda/kernels/attention_warpgroup.h"

namespace lockstep::engine::cuda {
namespace {

// With kLeaves dropout's bits are left in args.kept.
template <Type kType, bool kDrops, bool kLeaves>
__global__ void __launch_bounds__(kBlockThreads, 2) GroupKernel(AttentionArgs args) {
#if LOCKSTEP_WARPGROUPS
  const MatrixTile<kGroupSide> queries{SharedMemory()};
  uint16_t* const stages = queries.data + kGroups * kTile;
  const Head h = HeadOf(args, blockIdx.z, blockIdx.y);
  const HeadDrop drop = kDrops ? HeadDropOf(args, h) : HeadDrop{};
  const int64_t offset = h.sample * args.length * args.stride + h.head * args.depth;
  // With a causal mask the last queries have the most keys: they begin.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int group_row = OwnGroup() * kGroupSide, warp_row = group_row + OwnWarpRow();
  const int group_query = first_query + group_row, first_row = first_query + warp_row;
  int end = static_cast<int>(h.keys);
  if (args.causal && first_query + kBlockRows < end) end = first_query + kBlockRows;
  const auto load = [&](int stage, int first_key) {
    const MatrixTile<kGroupSide> keys{stages + stage * kStage}, values{keys.data + kStage / 2};
    keys.template Load<kStageKeys, kBlockThreads, true>(HeadData(args.k, offset), args.stride,
                                                        first_key, args.length, args.depth);
    values.template Load<kStageKeys, kBlockThreads, true>(HeadData(args.v, offset), args.stride,
                                                          first_key, args.length, args.depth);
  };
  queries.template Load<kBlockRows, kBlockThreads>(HeadData(args.q, offset), args.stride,
                                                   first_query, args.length, args.depth);
  load(0, 0);
  CommitCopies();
  if (kStageKeys < end) load(1, kStageKeys);
  CommitCopies();
  WaitForCopies<1>();
  PublishShared();
  __syncthreads();
  const MatrixTile<kGroupSide> own{queries.data + group_row * kGroupSide};
  LeftFactor weights[1];
  RunningSums<1> running;
  float out[1][8][4], scores[1][8][4];
  BeginRows(running, out);
  const KeptRows left = kLeaves ? KeptRows(args.kept, h.unit, args.length, first_row) : KeptRows();
  const auto soften = [&](int first_key) {
    // Of the whole warpgroup alike.
    if (group_query < args.length && first_key < end &&
        (!args.causal || first_key < group_query + kGroupSide)) {
      const Place place = {first_row, first_key};
      MaskScores(args, h, place, scores);
      uint32_t kept[1][2];
      Soften<kType, kLeaves>(args, kDrops, drop, place, scores, running, out, weights, kept);
      if (kLeaves) left.Store(first_key, kept[0]);
    } else {
      Clear(weights[0]);
    }
  };
  BeginProducts();
  BeginScores<kType>(scores[0], own, {stages});
  CommitProducts();
  WaitForProducts();
  Settle(scores[0]);
  int first_key = 0;
  for (int number = 0;;) {
    const uint16_t* const stage = stages + number * kStage;
    soften(first_key);
    BeginProducts();
    BeginSums<kType>(out[0], weights[0], TileAt(stage + kStage / 2));
    BeginScores<kType>(scores[0], own, TileAt(stage + kTile));
    CommitProducts();
    WaitForProducts();
    Settle(out[0]);
    Settle(scores[0]);
    soften(first_key + kGroupSide);
    first_key += kStageKeys;
    if (first_key >= end) {
      BeginProducts();
      BeginSums<kType>(out[0], weights[0], TileAt(stage + kStage / 2 + kTile));
      break;
    }
    number = number + 1 == kStages ? 0 : number + 1;
    WaitForCopies();
    PublishShared();
    __syncthreads();  // the next stage is there, and the products of the one before this are made
    const int after = number + 1 == kStages ? 0 : number + 1;
    if (first_key + kStageKeys < end) load(after, first_key + kStageKeys);
    CommitCopies();
    BeginProducts();
    BeginSums<kType>(out[0], weights[0], TileAt(stage + kStage / 2 + kTile));
    BeginScores<kType>(scores[0], own, TileAt(stages + number * kStage));
    CommitProducts();
    WaitForProducts();
    Settle(out[0]);
    Settle(scores[0]);
  }
  CommitProducts();
  WaitForProducts();
  Settle(out[0]);
  WaitForCopies();
  StoreRows(args, h, first_row, running, out);
#endif
}

constexpr int kBitsThreads = 128;

// The bits of a query's 64 keys are those of four threads.
__global__ void __launch_bounds__(kBitsThreads) KeptBitsKernel(AttentionArgs args) {
  const int64_t padded = PaddedLength(args.length);
  const int thread = static_cast<int>(threadIdx.x);
  const int query = static_cast<int>(blockIdx.x) * (kBitsThreads / 4) + thread / 4;
  if (query >= padded) return;
  const Head h = HeadOf(args, blockIdx.z, blockIdx.y);
  const HeadDrop drop = HeadDropOf(args, h);
  for (int first_key = 0; first_key < padded; first_key += kGroupSide) {
    DropFactors<8> numbers;
    numbers.Draw(args, drop, query, first_key);
    uint32_t kept = 0;
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      bool keeps[2];
      numbers.Keep(args, t, keeps);
      SetBit(kept, 2 * t, keeps[0]);
      SetBit(kept, 2 * t + 1, keeps[1]);
    }
    args.kept[KeptAt(h.unit, padded, first_key, thread % 4) + query] = static_cast<uint16_t>(kept);
  }
}

template <Type kType, bool kDrops, bool kLeaves>
Code LaunchKernel(const AttentionArgs& args, Stream stream) {
  constexpr size_t kBytes = (kGroups * kTile + kStages * kStage) * sizeof(uint16_t);
  return LaunchShared(GroupKernel<kType, kDrops, kLeaves>,
                      Grid(DivideUp(args.length, kBlockRows), args.heads, args.batch),
                      kBlockThreads, kBytes, stream, args);
}

template <Type kType>
Code LaunchGroups(const AttentionArgs& args, Stream stream) {
  if (!Drops(args)) return LaunchKernel<kType, false, false>(args, stream);
  return args.kept != nullptr ? LaunchKernel<kType, true, true>(args, stream)
                              : LaunchKernel<kType, true, false>(args, stream);
}

}  // namespace

bool AttentionFitsWarpgroups(const AttentionArgs& args) {
  return FitsWarpgroups(args) && StoresPairs(args.y);
}

Code LaunchGroupAttention(const AttentionArgs& args, Stream stream) {
  return args.q.type == Type::kBF16 ? LaunchGroups<Type::kBF16>(args, stream)
                                    : LaunchGroups<Type::kF16>(args, stream);
}

Code LaunchKeptBits(const AttentionArgs& args, Stream stream) {
  const int64_t blocks = DivideUp(PaddedLength(args.length), kBitsThreads / 4);
  return Launch(KeptBitsKernel, Grid(blocks, args.heads, args.batch), kBitsThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
