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

// Scores [kBands * 16, kTiles * 8] = rows from `row` on of `left` times the transposed rows of
// `right`.
template <Type kType, int kDepth, int kBands, int kTiles>
__device__ __forceinline__ void MakeProducts(const MatrixTile<kDepth>& left, int row,
                                             const MatrixTile<kDepth>& right,
                                             float (&scores)[kBands][kTiles][4]) {
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[band][t][i] = 0;
    }
  }
  const int lane = FreshLane();
#pragma unroll
  for (int chunk = 0; chunk < kDepth / kChunk; chunk += 2) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int band = 0; band < kBands; ++band) left.Left(row + 16 * band, chunk, a[band], lane);
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      uint32_t b[4];
      right.RightTransposed(t * 8, chunk, b, lane);
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        MultiplyAdd<kType>(scores[band][t], a[band], b[0], b[1]);
        MultiplyAdd<kType>(scores[band][t + 1], a[band], b[2], b[3]);
      }
    }
  }
}

// out [kBands * 16, kDepth] += weights [kBands * 16, kTiles * 8] times the rows of `right`. The
// weights are fragments whose pairs are packed.
template <Type kType, int kDepth, int kBands, int kTiles>
__device__ __forceinline__ void AddWeighted(const uint32_t (&weights)[kBands][kTiles][2],
                                            const MatrixTile<kDepth>& right,
                                            float (&out)[kBands][kDepth / 8][4]) {
  const int lane = FreshLane();
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
#pragma unroll
    for (int chunk = 0; chunk < kDepth / kChunk; chunk += 2) {
      uint32_t b[4];
      right.Right(t * 8, chunk, b, lane);
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

// Returns whether all keys [first_key, first_key + keys) count for all queries from `first_query`
// on.
__device__ __forceinline__ bool SeesAll(const AttentionArgs& args, const Head& h,
                                        int64_t first_query, int64_t first_key, int keys) {
  return h.by_key == nullptr && first_key + keys <= h.keys &&
         (!args.causal || first_key + keys - 1 <= first_query);
}

// A bit for each key of the thread that counts, as a mask of keys has it, found before many of them
// are looked at: bits 2 t and 2 t + 1 are those of tile t, whose keys `first` and `first` + 1 are
// those of tile 0. All bits without a mask.
template <int kTiles>
__device__ __forceinline__ uint32_t KeyBits(const Head& h, int first) {
  static_assert(2 * kTiles <= 32);
  if (h.by_key == nullptr) return ~0u;
  uint32_t bits = 0;
#pragma unroll 1
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = first + 8 * t + e;
      if (key < h.keys && h.by_key[key] != 0) bits |= 1u << (2 * t + e);
    }
  }
  return bits;
}

// What dropout multiplies the thread's probabilities of one query by, for kTiles * 8 keys: 1 until
// they are drawn.
template <int kTiles>
struct DropFactors {
  static_assert(kTiles % 4 == 0);
  // For the keys from `first_key` on. REQUIRES: first_key is a multiple of 32, drop.address.
  __device__ __forceinline__ void Draw(const AttentionArgs& args, const Head& h, int64_t query,
                                       int64_t first_key) {
    threshold = args.drop.threshold;
    scale = args.drop.scale;
    const Site site = SiteOf(args.drop);
    const uint64_t padded = static_cast<uint64_t>((args.length + 63) / 64 * 64);
    const uint64_t pair = threadIdx.x % 4;
    const uint64_t element =
        (h.random_row + static_cast<uint64_t>(query)) * padded + static_cast<uint64_t>(first_key);
    const int first = static_cast<int>(element % 64 / 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // The counter of RandomHalf for the pair of tiles i, i + 2, ...
      const uint64_t counter = 8 * (element / 64) + static_cast<uint64_t>(4 * i) + pair;
      const Words words =
          Philox<7>(static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), site.step,
                    site.shard, site.key);
#pragma unroll
      for (int t = i; t < kTiles; t += 2) bits[t] = WordAt(words, first + t / 2);
    }
  }
  // Of the pair of tile `tile`.
  __device__ __forceinline__ void Of(int tile, float (&factors)[2]) const {
    factors[0] = (bits[tile] & 0xffff) >= threshold ? scale : 0;
    factors[1] = bits[tile] >> 16 >= threshold ? scale : 0;
  }

  uint32_t bits[kTiles] = {};  // two numbers for each tile
  uint32_t threshold = 0;
  float scale = 1;
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
// to 128, every token asking. Host code.
inline bool FitsTensorCores(const AttentionArgs& args) {
  return args.queries == args.length && args.depth % kChunk == 0 && args.depth <= 128 &&
         args.width % 2 == 0 && args.q.type == args.k.type && args.q.type == args.v.type &&
         MovesInChunks(args.q, args.stride) && MovesInChunks(args.k, args.stride) &&
         MovesInChunks(args.v, args.stride);
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_MATRIX_H_
