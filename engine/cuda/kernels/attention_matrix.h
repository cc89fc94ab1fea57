// SPDX-License-Identifier: Apache-2.0
// What the attention kernels on tensor cores share: the products of scores, masks and dropout on
// fragments. Scores lie in
// fragments with queries as rows and keys as columns, so that a thread has two rows of each 16 and
// a random word serves several of its keys. Included by .cu files only.
// Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_MATRIX_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_MATRIX_H_

#include "engine/cuda/kernels/attention_tiles.h"
#include "engine/cuda/kernels/matrix_tile.h"

namespace lockstep::engine::cuda {

inline constexpr float kLog2E = 1.44269504088896340736f;

// Tiles of 8 keys that a warp has: every kStep-th one of the block's from number `first` on.

// Scores [kBands * 16, kTiles * 8] = rows from `row` on of `left` times the transposed rows of
// `right`, those of the warp's tiles.
template <Type kType, int kStep = 1, int kDepth, int kBands, int kTiles>
__device__ __forceinline__ void MakeProducts(const MatrixTile<kDepth>& left, int row,
                                             const MatrixTile<kDepth>& right,
                                             float (&scores)[kBands][kTiles][4], int first = 0) {
  const int lane = FreshLane();
#pragma unroll
  for (int chunk = 0; chunk < kDepth / kChunk; chunk += 2) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int band = 0; band < kBands; ++band) left.Left(row + 16 * band, chunk, a[band], lane);
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      uint32_t b[4];
      right.template RightTransposed<8 * kStep>((t * kStep + first) * 8, chunk, b, lane);
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        if (chunk == 0) {
          Multiply<kType>(scores[band][t], a[band], b[0], b[1]);
          Multiply<kType>(scores[band][t + 1], a[band], b[2], b[3]);
        } else {
          MultiplyAdd<kType>(scores[band][t], a[band], b[0], b[1]);
          MultiplyAdd<kType>(scores[band][t + 1], a[band], b[2], b[3]);
        }
      }
    }
  }
}

// out [kBands * 16, kDepth] += weights [kBands * 16, kTiles * 8] times the rows of `right`, those
// of the warp's tiles. The weights are fragments whose pairs are packed.
template <Type kType, int kStep = 1, int kDepth, int kBands, int kTiles>
__device__ __forceinline__ void AddWeighted(const uint32_t (&weights)[kBands][kTiles][2],
                                            const MatrixTile<kDepth>& right,
                                            float (&out)[kBands][kDepth / 8][4], int first = 0) {
  const int lane = FreshLane();
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
#pragma unroll
    for (int chunk = 0; chunk < kDepth / kChunk; chunk += 2) {
      uint32_t b[4];
      right.template Right<8 * kStep>((t * kStep + first) * 8, chunk, b, lane);
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        const uint32_t a[4] = {weights[band][t][0], weights[band][t][1], weights[band][t + 1][0],
                               weights[band][t + 1][1]};
        MultiplyAdd<kType>(out[band][chunk], a, b[0], b[1]);
        MultiplyAdd<kType>(out[band][chunk + 1], a, b[2], b[3]);
      }
    }
  }
}

// Makes sums zeros.
template <int kBands, int kOut>
__device__ __forceinline__ void Clear(float (&out)[kBands][kOut][4]) {
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int c = 0; c < kOut; ++c) {
      out[band][c][0] = out[band][c][1] = out[band][c][2] = out[band][c][3] = 0;
    }
  }
}

// Returns whether all keys [first_key, first_key + keys) count for all queries from `first_query`
// on.
__device__ __forceinline__ bool SeesAll(const AttentionArgs& args, const Head& h, int first_query,
                                        int first_key, int keys) {
  return h.by_key == nullptr && first_key + keys <= static_cast<int>(h.keys) &&
         (!args.causal || first_key + keys - 1 <= first_query);
}

// A bit for each key of the thread that counts, as a mask of keys has it, found before many of them
// are looked at: bits 2 t and 2 t + 1 are those of tile t, whose keys `first` and `first` + 1 are
// those of tile 0. All bits without a mask.
template <int kTiles, int kStep>
__device__ __forceinline__ uint32_t KeyBits(const Head& h, int first) {
  static_assert(2 * kTiles <= 32);
  if (h.by_key == nullptr) return ~0u;
  uint32_t bits = 0;
#pragma unroll 1
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = first + 8 * kStep * t + e;
      if (key < h.keys && h.by_key[key] != 0) bits |= 1u << (2 * t + e);
    }
  }
  return bits;
}

// Returns whether there is dropout.
__host__ __device__ __forceinline__ bool Drops(const AttentionArgs& args) {
  return args.drop.address != nullptr;
}

// Where the random numbers of a head lie, if there is dropout: found once, since each tile draws
// some.
struct HeadDrop {
  uint32_t step;
  uint32_t shard;
  uint64_t first_row;  // that of query 0, in rows of padded length
};
// REQUIRES: args.round_keys, where there is dropout.
__device__ __forceinline__ HeadDrop HeadDropOf(const AttentionArgs& args, const Head& h) {
  if (!Drops(args)) return {};
  const Site site = SiteOf(args.drop);
  return {site.step, site.shard, h.random_row};
}

// What dropout multiplies the thread's probabilities of one query by, for the keys of kTiles tiles:
// 1 until they are drawn. A counter has the numbers of 64 keys for one pair of columns in every
// second tile, so that four tiles, side by side or not, or all eight leave none unused.
template <int kTiles, int kStep = 1>
struct DropFactors {
  static_assert(kTiles * kStep == 8 || (kTiles == 4 && kStep == 1));
  // For the tiles from number `first` on of the keys from `first_key` on. REQUIRES: first_key is a
  // multiple of 64, or of 32 for four tiles side by side; Drops(args).
  __device__ __forceinline__ void Draw(const AttentionArgs& args, const HeadDrop& drop, int query,
                                       int first_key, int first = 0) {
    const uint64_t row = drop.first_row + static_cast<uint64_t>(query);
    const auto counters = static_cast<uint32_t>((args.length + 63) / 64 * 8);  // of a row
    const uint64_t base = row * counters + static_cast<uint64_t>(first_key / 64 * 8 +
                                                                 static_cast<int>(threadIdx.x) % 4);
    const int word = kTiles * kStep == 8 ? 0 : first_key % 64 / 16;
#pragma unroll
    for (int i = 0; i < 2 / kStep; ++i) {
      // The counter of RandomHalf for the pair of tiles i, i + 2, ...
      const uint64_t counter = base + static_cast<uint64_t>(4 * (kStep == 1 ? i : first));
      const Words words =
          PhiloxOf(static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), drop.step,
                   drop.shard, args.round_keys);
#pragma unroll
      for (int t = i; t < kTiles; t += 2 / kStep) {
        bits[t] = WordAt(words, word + t * kStep / 2);
      }
    }
  }
  // Says which of the pair of tile `tile` stay.
  __device__ __forceinline__ void Keep(const AttentionArgs& args, int tile,
                                       bool (&keeps)[2]) const {
    const uint32_t threshold = args.drop.threshold << 16;
    keeps[0] = bits[tile] << 16 >= threshold;
    keeps[1] = bits[tile] >= threshold;
  }
  // The same of both at once: all bits of the lower half where the first of them stays, and of the
  // upper half where the second does.
  __device__ __forceinline__ uint32_t Kept(const AttentionArgs& args, int tile) const {
    // A number's lower 15 bits and `rest` have bit 15 where they are those of the threshold at
    // least.
    const uint32_t rest = (0x8000 - (args.drop.threshold & 0x7fff)) * 0x10001u;
    const uint32_t sums = (bits[tile] & 0x7fff7fff) + rest;
    const uint32_t small = args.drop.threshold < 0x8000 ? ~0u : 0;
    return SignsOfHalves(MostOf(bits[tile], sums, small));
  }
  // The factors of that pair.
  __device__ __forceinline__ void Of(const AttentionArgs& args, int tile,
                                     float (&factors)[2]) const {
    bool keeps[2];
    Keep(args, tile, keeps);
    factors[0] = keeps[0] ? args.drop.scale : 0;
    factors[1] = keeps[1] ? args.drop.scale : 0;
  }

  uint32_t bits[kTiles] = {};  // two numbers for each tile
};

// One head's numbers from position 0 on.
__device__ __forceinline__ const uint16_t* HeadData(const View& view, int64_t offset) {
  return static_cast<const uint16_t*>(view.data) + offset;
}

// Returns whether rows of these views can be moved in chunks. Host code.
inline bool MovesInChunks(const View& view, int64_t stride) {
  return view.type != Type::kF32 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         stride % kChunk == 0;
}
// Returns whether tensor cores can do it: 16-bit factors of one type, heads of a multiple of 8 up
// to 128, every token asking, and what MatrixTile::Load requires. Host code.
inline bool FitsTensorCores(const AttentionArgs& args) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return args.stride < kMost && args.width < kMost && args.length < kMost &&
         args.queries == args.length && args.depth % kChunk == 0 && args.depth <= 128 &&
         args.width % 2 == 0 && args.q.type == args.k.type && args.q.type == args.v.type &&
         MovesInChunks(args.q, args.stride) && MovesInChunks(args.k, args.stride) &&
         MovesInChunks(args.v, args.stride);
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_MATRIX_H_
