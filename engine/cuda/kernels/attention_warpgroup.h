// SPDX-License-Identifier: Apache-2.0
// What the attention kernels of sm_90a share: which shapes they take, and how the bits of dropout
// lie that the forward pass, or the kernel of queries, leaves. Included by .cu files only.
// Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_WARPGROUP_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_WARPGROUP_H_

#include "engine/cuda/kernels/attention_matrix.h"
#include "engine/cuda/kernels/warpgroup_matrix.h"

namespace lockstep::engine::cuda {

// A block is two warpgroups, each with 64 of its rows.
inline constexpr int kGroups = 2;
inline constexpr int kBlockThreads = kGroups * kGroupThreads;
inline constexpr int kBlockRows = kGroups * kGroupSide;

inline constexpr int kTile = kGroupSide * kGroupSide;  // numbers
// What goes through shared memory is there in stages, of which one is filled while one is read; the
// third is that of products which are not waited for yet.
inline constexpr int kStages = 3;
// Of the owners of keys, who load a tile while they multiply the one three before it; one warpgroup
// may be a tile ahead of the other.
inline constexpr int kKeyStages = 5;
// A stage of keys and values: two tiles of each, so that threads meet half as often.
inline constexpr int kStageKeys = 2 * kGroupSide;
inline constexpr int kStage = 4 * kTile;

// A stage of what the owners of keys go through: the queries of a tile and their dy, and what the
// owners of queries left of them.
struct QueryStage {
  static constexpr int kKept = kGroups * 4 * kGroupSide;  // numbers
  static constexpr int kRows = 2 * kGroupSide * 2;        // fp32, counted as 16-bit numbers
  static constexpr int kUnused = 256;                     // so that the next stage is aligned
  static constexpr int kNumbers = 2 * kTile + kKept + kRows + kUnused;

  // The queries' tile and dy's.
  __device__ __forceinline__ MatrixTile<kGroupSide> Queries() const { return {data}; }
  // As above.
  __device__ __forceinline__ MatrixTile<kGroupSide> Dy() const { return {data + kTile}; }
  // Dropout's bits [kGroups, 4, kGroupSide].
  __device__ __forceinline__ uint16_t* Kept() const { return data + 2 * kTile; }
  // The log-sum in base 2 and delta of each: [kGroupSide, 2].
  __device__ __forceinline__ uint16_t* Rows() const { return data + 2 * kTile + kKept; }

  uint16_t* data;
};
static_assert(QueryStage::kNumbers * sizeof(uint16_t) % kTileAlignment == 0);

// The tile that begins there, to be read.
__device__ __forceinline__ MatrixTile<kGroupSide> TileAt(const uint16_t* data) {
  return {const_cast<uint16_t*>(data)};
}

// Of the thread's warpgroup in its block, as a number that is the same in all of its lanes.
__device__ __forceinline__ int OwnGroup() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
}
// The first of the thread's warp's 16 rows among those of its warpgroup.
__device__ __forceinline__ int OwnWarpRow() {
  return static_cast<int>(threadIdx.x) % kGroupThreads / kWarp * 16;
}

#if LOCKSTEP_WARPGROUPS

// The two warpgroups of a block begin products in turn, so that tensor cores work for one while the
// other makes its next left factors: a turn begins when the products of the other's are begun. What
// a warpgroup waited for and published before its turn is there in the other's next one.
struct Turns {
  __device__ __forceinline__ explicit Turns(int own) : own(own) {
    if (own == kGroups - 1) Give();
  }
  // Waits for the own turn.
  __device__ __forceinline__ void Take() const { WaitAt(1 + own, kBlockThreads); }
  // Lets the other warpgroup begin.
  __device__ __forceinline__ void Give() const { ArriveAt(1 + (own ^ 1), kBlockThreads); }
  // As Give, in the last turn of both.
  __device__ __forceinline__ void GiveLast() const {
    if (own == 0) Give();
  }

  int own;
};
static_assert(kGroups == 2);

#endif  // LOCKSTEP_WARPGROUPS

// `length` up to whole tiles.
__host__ __device__ __forceinline__ int64_t PaddedLength(int64_t length) {
  return (length + kGroupSide - 1) / kGroupSide * kGroupSide;
}
// Where the bits of dropout of 64 keys from `key` on lie, those of query 0 and of pair of columns
// `pair`: query i's are i further, the next pair's a padded length. Keys 8 t + 2 `pair` and the one
// behind it are bits 2 t and 2 t + 1.
__device__ __forceinline__ int64_t KeptAt(int64_t unit, int64_t padded, int key, int pair) {
  return ((unit * (padded / kGroupSide) + key / kGroupSide) * 4 + pair) * padded;
}

// The bits of a thread's two rows, lane / 4 and the one 8 below of those from `first_row` on.
struct KeptRows {
  KeptRows() = default;
  __device__ __forceinline__ KeptRows(uint16_t* kept, int64_t unit, int64_t length, int first_row)
      : step(static_cast<int>(PaddedLength(length) / 16)) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    first = kept + KeptAt(unit, PaddedLength(length), 0, lane % 4) + first_row + lane / 4;
  }
  // Those of the 64 keys from `key` on, which is a multiple of 64.
  __device__ __forceinline__ void Load(int key, uint32_t (&bits)[2]) const {
    const uint16_t* const at = first + int64_t{key} * step;
    bits[0] = at[0];
    bits[1] = at[8];
  }
  // As above.
  __device__ __forceinline__ void Store(int key, const uint32_t (&bits)[2]) const {
    uint16_t* const at = first + int64_t{key} * step;
    at[0] = static_cast<uint16_t>(bits[0]);
    at[8] = static_cast<uint16_t>(bits[1]);
  }

  uint16_t* first = nullptr;  // of key 0
  int step = 0;               // from a key to the next, which is as far as KeptAt has it of 64
};

// Returns whether warpgroups can do it: where tensor cores can, heads of 40 to 64 columns (narrower
// ones would be mostly padding). Host code.
inline bool FitsWarpgroups(const AttentionArgs& args) {
  return kHasWarpgroups && args.warpgroups && FitsTensorCores(args) &&
         args.depth > kGroupSide / 2 && args.depth <= kGroupSide;
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_WARPGROUP_H_
