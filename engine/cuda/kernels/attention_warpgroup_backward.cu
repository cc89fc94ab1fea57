// SPDX-License-Identifier: Apache-2.0
// Attention backward by warpgroups of sm_90a: attention_backward.cu's formulas. As on other GPUs
// scores are made twice, by the owners of queries (dq), who come first, and by those of keys (dk
// and dv), so that every sum has one owner and one order. Left factors are always registers:
// queries and dy, or keys and values, which stay, and the probabilities and gradients of scores
// where they are made; the owners of keys therefore make the transposed scores. There a thread has
// two keys of each query, whereas a random number of dropout comes with those of seven other keys:
// where the forward pass left no bits for both, the owners of queries, who need all eight, draw
// them and leave a bit for each, as they leave delta, which they make themselves. The two
// warpgroups of a block begin products in turn.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/attention_gradient.h"
#include "engine/cuda/kernels/attention_warpgroup.h"

namespace lockstep::engine::cuda {
namespace {

// What a warpgroup's owner of queries knows of a thread's two rows: lane / 4 and the one 8 below.
struct Rows {
  int query[2];
  float log_sum[2];  // in base 2; infinite beyond the sequence, where probabilities are 0
  float delta[2];
};

// Of the forward pass what a thread needs for its rows: of y chunk lane % 4 and the one 4 further.
struct Results {
  RawEight y[2][2];  // zeros beyond the head's columns and the sequence
  float log_sum[2];  // as in Rows
};

// Those of the warp's 16 rows from first_row on.
[[maybe_unused]] __device__ __forceinline__ Results LoadResults(const AttentionArgs& f,
                                                                const Head& h, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Results results;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_row + 8 * half + lane / 4;
    const int64_t at = (h.sample * f.length + query) * f.width + h.head * f.depth;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = (lane % 4 + 4 * i) * kChunk;
      const bool inside = query < f.length && column < f.depth;
      results.y[half][i] = LoadRaw(inside ? f.y : View{nullptr, f.y.type}, at + column);
    }
    results.log_sum[half] = INFINITY;
    if (query < f.length) {
      results.log_sum[half] = Load(f.log_sums, h.unit * f.length + query) * kLog2E;
    }
  }
  return results;
}

// The warp's rows from first_row on, which are those of `dy` from tile_row on; they are left for
// the owners of keys. delta = rowsum(dy y) has attention_backward.cu's order: a chunk's products
// one after another, then the sums of chunks 4, 2 and 1 apart.
template <Type kType>
__device__ __forceinline__ Rows RowsOf(const AttentionBackwardArgs& args, const Head& h,
                                       int first_row, const MatrixTile<kGroupSide>& dy,
                                       int tile_row, const Results& results) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t padded = PaddedLength(args.forward.length);
  Rows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 8 * half + lane / 4, query = first_row + row;
    float sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint16_t* const from = dy.At(tile_row + row, lane % 4 + 4 * i);
      const Eight own = Widen(kType, {*reinterpret_cast<const uint4*>(from), {}});
      const Eight y = Widen(args.forward.y.type, results.y[half][i]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i] += own.x[e] * y.x[e];
    }
    float delta = sums[0] + sums[1];
    delta += __shfl_xor_sync(kAllLanes, delta, 2);
    delta += __shfl_xor_sync(kAllLanes, delta, 1);
    rows.query[half] = query;
    rows.delta[half] = delta;
    rows.log_sum[half] = results.log_sum[half];
    if (lane % 4 == 0 && query < padded) {
      float* const left = args.rows + 2 * (h.unit * padded + query);
      left[0] = rows.log_sum[half];
      left[1] = delta;
    }
  }
  return rows;
}

// From scores and the products dy v^T of a warp's 16 queries by 64 keys to the gradients of scores.
// `kept` has dropout's bits with kReads, and gets them else. With kAll all keys count for all
// queries.
template <Type kType, bool kDrops, bool kReads, bool kAll>
__device__ __forceinline__ void MakeGradients(const AttentionArgs& f, const Head& h,
                                              const HeadDrop& drop, const Rows& rows, int first_key,
                                              const float (&scores)[8][4],
                                              const float (&products)[8][4], LeftFactor& gradients,
                                              uint32_t (&kept)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = first_key + lane % 4 * 2;
  const uint32_t counts = kAll ? ~0u : KeyBits<8, 1>(h, first);
  const float factor = f.scale * kLog2E;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int end = static_cast<int>(h.keys) - first;
    if (f.causal) {
      const int seen = rows.query[half] + 1 - first;
      end = seen < end ? seen : end;
    }
    DropFactors<8> numbers;
    if (kDrops && !kReads) {
      numbers.Draw(f, drop, rows.query[half], first_key);
      kept[half] = 0;
    }
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      bool keeps[2] = {true, true};
      if (kReads) {
        keeps[0] = (kept[half] & 1u << (2 * t)) != 0;
        keeps[1] = (kept[half] & 2u << (2 * t)) != 0;
      } else if (kDrops) {
        numbers.Keep(f, t, keeps);
        SetBit(kept[half], 2 * t, keeps[0]);
        SetBit(kept[half], 2 * t + 1, keeps[1]);
      }
      float ds[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * half + e;
        const float p = PowerOfTwo(scores[t][i] * factor - rows.log_sum[half]);
        const float product = keeps[e] ? products[t][i] : 0;
        const float all = p * (product * f.drop.scale - rows.delta[half]);
        const bool sees = kAll || (8 * t + e < end && (counts >> (2 * t + e) & 1) != 0);
        ds[e] = sees ? all : 0;
      }
      gradients[t][half] = Pack<kType>(ds[0], ds[1]);
    }
  }
}

// dq of kBlockRows queries. With kReads the forward pass has left dropout's bits.
template <Type kType, bool kDrops, bool kReads>
__global__ void __launch_bounds__(kBlockThreads) GroupQueriesKernel(AttentionBackwardArgs args) {
#if LOCKSTEP_WARPGROUPS
  const AttentionArgs& f = args.forward;
  const MatrixTile<kGroupSide> queries{SharedMemory()}, dy{queries.data + kGroups * kTile};
  uint16_t* const stages = dy.data + kGroups * kTile;
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const HeadViews views(args, h);
  const HeadDrop drop = kDrops && !kReads ? HeadDropOf(f, h) : HeadDrop{};
  const int length = static_cast<int>(f.length);
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int group_row = OwnGroup() * kGroupSide, warp_row = group_row + OwnWarpRow();
  const int group_query = first_query + group_row, first_row = first_query + warp_row;
  const auto load = [&](int stage, int first_key) {
    const MatrixTile<kGroupSide> keys{stages + stage * kStage}, values{keys.data + kStage / 2};
    keys.template Load<kStageKeys, kBlockThreads>(views.k, f.stride, first_key, f.length, f.depth);
    values.template Load<kStageKeys, kBlockThreads>(views.v, f.stride, first_key, f.length,
                                                    f.depth);
  };
  queries.template Load<kBlockRows, kBlockThreads>(views.q, f.stride, first_query, f.length,
                                                   f.depth);
  dy.template Load<kBlockRows, kBlockThreads>(views.dy, f.width, first_query, f.length, f.depth);
  load(0, 0);
  CommitCopies();
  int end = static_cast<int>(h.keys);
  if (f.causal && first_query + kBlockRows < end) end = first_query + kBlockRows;
  if (kStageKeys < end) load(1, kStageKeys);
  CommitCopies();
  const Results results = LoadResults(f, h, first_row);
  WaitForCopies<1>();
  PublishShared();
  __syncthreads();
  const Rows rows = RowsOf<kType>(args, h, first_row, dy, warp_row, results);
  LeftFactor left_queries, left_dy, gradients;
  LoadLeft(queries, warp_row, left_queries);
  LoadLeft(dy, warp_row, left_dy);
  float dq[1][8][4], scores[8][4], products[8][4];
  Clear(dq);
  // Of the whole warpgroup alike.
  const auto sees = [&](int first_key) {
    return group_query < length && first_key < end &&
           (!f.causal || first_key < group_query + kGroupSide);
  };
  const KeptRows kept_rows = kDrops ? KeptRows(args.kept, h.unit, f.length, first_row) : KeptRows();
  uint32_t kept[2];
  // Asks for the bits of a tile of keys, before its products are waited for.
  const auto read = [&](int first_key) {
    if (kReads && sees(first_key)) kept_rows.Load(first_key, kept);
  };
  const auto make = [&](int first_key) {
    if (sees(first_key)) {
      if (first_row + 16 <= length && SeesAll(f, h, first_row, first_key, kGroupSide)) {
        MakeGradients<kType, kDrops, kReads, true>(f, h, drop, rows, first_key, scores, products,
                                                   gradients, kept);
      } else {
        MakeGradients<kType, kDrops, kReads, false>(f, h, drop, rows, first_key, scores, products,
                                                    gradients, kept);
      }
      if (kDrops && !kReads) kept_rows.Store(first_key, kept);
    } else {
      Clear(gradients);
    }
  };
  const Turns turns(OwnGroup());
  // dq of the keys of one tile, and the scores of the next, begun.
  const auto multiply = [&](const uint16_t* keys, const uint16_t* next) {
    turns.Take();
    BeginProducts();
    BeginSums<kType>(dq[0], gradients, TileAt(keys));
    BeginScores<kType>(scores, left_queries, TileAt(next));
    BeginScores<kType>(products, left_dy, TileAt(next + kStage / 2));
    CommitProducts();
    turns.Give();
  };
  const auto finish = [&] {
    WaitForProducts();
    Settle(dq[0]);
    Settle(scores);
    Settle(products);
  };
  read(0);
  BeginProducts();
  BeginScores<kType>(scores, left_queries, TileAt(stages));
  BeginScores<kType>(products, left_dy, TileAt(stages + kStage / 2));
  CommitProducts();
  WaitForProducts();
  Settle(scores);
  Settle(products);
  int first_key = 0;
  for (int number = 0;;) {
    const uint16_t* const stage = stages + number * kStage;
    make(first_key);
    read(first_key + kGroupSide);
    // The next stage: the other warpgroup may begin its next products with it.
    WaitForCopies();
    PublishShared();
    multiply(stage, stage + kTile);
    finish();
    make(first_key + kGroupSide);
    first_key += kStageKeys;
    if (first_key >= end) {
      turns.Take();
      BeginProducts();
      BeginSums<kType>(dq[0], gradients, TileAt(stage + kTile));
      break;
    }
    read(first_key);
    number = number + 1 == kStages ? 0 : number + 1;
    multiply(stage + kTile, stages + number * kStage);
    // Both have done the products of the stage before this one.
    const int after = number + 1 == kStages ? 0 : number + 1;
    if (first_key + kStageKeys < end) load(after, first_key + kStageKeys);
    CommitCopies();
    finish();
  }
  CommitProducts();
  turns.GiveLast();
  WaitForProducts();
  Settle(dq[0]);
  WaitForCopies();
  StoreGradient(f, args.dq, views.offset, first_row, 0, f.scale, dq);
#endif
}

// From transposed scores and products of a warp's 16 keys by 64 queries to dropped probabilities
// and gradients of scores. `seen` has a bit for each of the thread's two keys that counts at all.
template <Type kType, bool kDrops, bool kAll>
__device__ __forceinline__ void MakeTransposed(const AttentionArgs& f, const QueryStage& stage,
                                               int first_key, uint32_t seen, int first_query,
                                               const float (&scores)[8][4],
                                               const float (&products)[8][4],
                                               LeftFactor& probabilities, LeftFactor& gradients) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int key = lane / 4;  // of the warp's 16, the thread's first
  const float factor = f.scale * kLog2E;
  // The bit of the thread's first key, in the lower half; the one 8 below is two further.
  const int bit = 4 * (OwnWarpRow() / 16) + key % 2;
  const uint32_t own_bit = 1u << bit;
  const uint16_t* const kept =
      stage.Kept() + (OwnGroup() * 4 + key / 2) * kGroupSide + lane % 4 * 2;
  const auto* const rows = reinterpret_cast<const float4*>(stage.Rows()) + lane % 4;
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    const float4 row = rows[4 * t];  // of two queries
    const float log_sum[2] = {row.x, row.z}, delta[2] = {row.y, row.w};
    const uint32_t bits = kDrops ? *reinterpret_cast<const uint32_t*>(kept + 8 * t) : ~0u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float p[2], ds[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * half + e;
        const bool keeps = !kDrops || (bits & own_bit << (16 * e + 2 * half)) != 0;
        float probability = PowerOfTwo(scores[t][i] * factor - log_sum[e]);
        if (!kAll) {
          const int query = first_query + 8 * t + lane % 4 * 2 + e;
          const bool sees =
              (seen >> half & 1) != 0 && (!f.causal || first_key + key + 8 * half <= query);
          probability = sees ? probability : 0;
        }
        const float product = keeps ? products[t][i] : 0;
        p[e] = keeps ? probability : 0;
        ds[e] = probability * (product * f.drop.scale - delta[e]);
      }
      probabilities[t][half] = Pack<kType>(p[0], p[1]);
      gradients[t][half] = Pack<kType>(ds[0], ds[1]);
    }
  }
}

// dk and dv of kBlockRows keys.
template <Type kType, bool kDrops>
__global__ void __launch_bounds__(kBlockThreads) GroupKeysKernel(AttentionBackwardArgs args) {
#if LOCKSTEP_WARPGROUPS
  const AttentionArgs& f = args.forward;
  const MatrixTile<kGroupSide> keys{SharedMemory()}, values{keys.data + kGroups * kTile};
  uint16_t* const stages = values.data + kGroups * kTile;
  const Head h = HeadOf(f, blockIdx.z, blockIdx.y);
  const HeadViews views(args, h);
  const int64_t padded = PaddedLength(f.length);
  const int length = static_cast<int>(f.length), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_key = static_cast<int>(blockIdx.x) * kBlockRows;
  const int group_row = OwnGroup() * kGroupSide, warp_row = group_row + OwnWarpRow();
  const int group_key = first_key + group_row, warp_key = first_key + warp_row;
  const auto load = [&](int number, int first_query) {
    const QueryStage stage{stages + number * QueryStage::kNumbers};
    stage.Queries().template Load<kGroupSide, kBlockThreads, true>(views.q, f.stride, first_query,
                                                                   f.length, f.depth);
    stage.Dy().template Load<kGroupSide, kBlockThreads, true>(views.dy, f.width, first_query,
                                                              f.length, f.depth);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < QueryStage::kRows / kChunk) {
      const float* const from = args.rows + 2 * (h.unit * padded + first_query);
      CopyAsync(stage.Rows() + thread * kChunk,
                reinterpret_cast<const uint16_t*>(from + thread * 4), true);
    } else if (kDrops && thread - QueryStage::kRows / kChunk < QueryStage::kKept / kChunk) {
      const int chunk = thread - QueryStage::kRows / kChunk, line = chunk / (kGroupSide / kChunk);
      const int key = first_key + line / 4 * kGroupSide;
      const bool inside = key < padded;
      const int64_t at = inside ? KeptAt(h.unit, padded, key, line % 4) + first_query +
                                      chunk % (kGroupSide / kChunk) * kChunk
                                : 0;
      CopyAsync(stage.Kept() + chunk * kChunk, args.kept + at, inside);
    }
  };
  static_assert((QueryStage::kRows + QueryStage::kKept) / kChunk <= kBlockThreads);
  float dk[1][8][4], dv[1][8][4], scores[8][4], products[8][4];
  Clear(dk);
  Clear(dv);
  // With a causal mask the queries before the tile see none of its keys; keys that do not count
  // are seen by none.
  int first_query = f.causal ? first_key : 0;
  if (first_key >= h.keys) {
    StoreGradient(f, args.dk, views.offset, warp_key, 0, f.scale, dk);
    StoreGradient(f, args.dv, views.offset, warp_key, 0, f.drop.scale, dv);
    return;
  }
  keys.template Load<kBlockRows, kBlockThreads>(views.k, f.stride, first_key, f.length, f.depth);
  values.template Load<kBlockRows, kBlockThreads>(views.v, f.stride, first_key, f.length, f.depth);
  load(0, first_query);
  CommitCopies();
  if (first_query + kGroupSide < length) load(1, first_query + kGroupSide);
  CommitCopies();
  if (first_query + 2 * kGroupSide < length) load(2, first_query + 2 * kGroupSide);
  CommitCopies();
  uint32_t seen = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = warp_key + 8 * half + lane / 4;
    if (key < h.keys && (h.by_key == nullptr || h.by_key[key] != 0)) seen |= 1u << half;
  }
  WaitForCopies<1>();
  PublishShared();
  __syncthreads();
  LeftFactor left_keys, left_values, probabilities, gradients;
  LoadLeft(keys, warp_row, left_keys);
  LoadLeft(values, warp_row, left_values);
  QueryStage stage{stages};
  const Turns turns(OwnGroup());
  BeginProducts();
  BeginScores<kType>(scores, left_keys, stage.Queries());
  BeginScores<kType>(products, left_values, stage.Dy());
  CommitProducts();
  WaitForProducts();
  Settle(scores);
  Settle(products);
  for (int number = 0;;) {
    // Of the whole warpgroup alike.
    if (group_key < h.keys && (!f.causal || group_key < first_query + kGroupSide)) {
      if (SeesAll(f, h, first_query, group_key, kGroupSide)) {
        MakeTransposed<kType, kDrops, true>(f, stage, warp_key, seen, first_query, scores, products,
                                            probabilities, gradients);
      } else {
        MakeTransposed<kType, kDrops, false>(f, stage, warp_key, seen, first_query, scores,
                                             products, probabilities, gradients);
      }
    } else {
      Clear(probabilities);
      Clear(gradients);
    }
    const QueryStage made = stage;
    first_query += kGroupSide;
    if (first_query >= length) {
      turns.Take();
      BeginProducts();
      BeginSums<kType>(dv[0], probabilities, made.Dy());
      BeginSums<kType>(dk[0], gradients, made.Queries());
      break;
    }
    number = number + 1 == kKeyStages ? 0 : number + 1;
    stage.data = stages + number * QueryStage::kNumbers;
    // The tile behind the next one: the other warpgroup may begin its next products with it.
    WaitForCopies();
    PublishShared();
    turns.Take();
    BeginProducts();
    BeginSums<kType>(dv[0], probabilities, made.Dy());
    BeginSums<kType>(dk[0], gradients, made.Queries());
    BeginScores<kType>(scores, left_keys, stage.Queries());
    BeginScores<kType>(products, left_values, stage.Dy());
    CommitProducts();
    turns.Give();
    // Both have done the products of the tile that was there, two before the one that was made.
    const int after = number + 2 < kKeyStages ? number + 2 : number + 2 - kKeyStages;
    if (first_query + 2 * kGroupSide < length) load(after, first_query + 2 * kGroupSide);
    CommitCopies();
    WaitForProducts();
    Settle(dk[0]);
    Settle(dv[0]);
    Settle(scores);
    Settle(products);
  }
  CommitProducts();
  turns.GiveLast();
  WaitForProducts();
  Settle(dk[0]);
  Settle(dv[0]);
  WaitForCopies();
  StoreGradient(f, args.dk, views.offset, warp_key, 0, f.scale, dk);
  StoreGradient(f, args.dv, views.offset, warp_key, 0, f.drop.scale, dv);
#endif
}

// Returns whether there are such bits and the owners of keys can load them.
bool MoveInChunks(const uint16_t* kept) {
  return kept != nullptr && reinterpret_cast<uintptr_t>(kept) % 16 == 0;
}

template <Type kType, bool kDrops, bool kReads>
Code LaunchKernels(const AttentionBackwardArgs& args, Stream stream) {
  const AttentionArgs& f = args.forward;
  const dim3 grid = Grid(DivideUp(f.length, kBlockRows), f.heads, f.batch);
  constexpr size_t kOwn = 2 * kGroups * kTile * sizeof(uint16_t);
  const Code code = LaunchShared(GroupQueriesKernel<kType, kDrops, kReads>, grid, kBlockThreads,
                                 kOwn + kStages * kStage * sizeof(uint16_t), stream, args);
  if (code != 0) return code;
  return LaunchShared(GroupKeysKernel<kType, kDrops>, grid, kBlockThreads,
                      kOwn + kKeyStages * QueryStage::kNumbers * sizeof(uint16_t), stream, args);
}

template <Type kType>
Code LaunchGroups(const AttentionBackwardArgs& args, Stream stream) {
  if (!Drops(args.forward)) return LaunchKernels<kType, false, false>(args, stream);
  if (!MoveInChunks(args.forward.kept)) return LaunchKernels<kType, true, false>(args, stream);
  AttentionBackwardArgs own = args;
  own.kept = args.forward.kept;
  return LaunchKernels<kType, true, true>(own, stream);
}

}  // namespace

bool AttentionBackwardFitsWarpgroups(const AttentionBackwardArgs& args) {
  return FitsWarpgroups(args.forward) && AttentionBackwardFitsTensorCores(args) &&
         AlignedEight(args.forward.y) && args.rows != nullptr &&
         (!Drops(args.forward) || MoveInChunks(args.forward.kept) || MoveInChunks(args.kept));
}

Code LaunchGroupAttentionBackward(const AttentionBackwardArgs& args, Stream stream) {
  return args.forward.q.type == Type::kBF16 ? LaunchGroups<Type::kBF16>(args, stream)
                                            : LaunchGroups<Type::kF16>(args, stream);
}

}  // namespace lockstep::engine::cuda
