// SPDX-License-Identifier: Apache-2.0
// Tiles of rows of 16-bit numbers in shared memory, and their fragments, for kernels of four warps
// on tensor cores. Included by .cu files only.
// Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_MATRIX_TILE_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_MATRIX_TILE_H_

#include "engine/cuda/kernels/warp_matrix.h"

namespace lockstep::engine::cuda {

inline constexpr int kMatrixWarps = 4;
inline constexpr int kMatrixThreads = kMatrixWarps * kWarp;
inline constexpr int kChunk = 8;  // numbers that move at once: 16 bytes

// Rows of kDepth numbers in shared memory. The chunks of a row are turned by its number, so that
// the same chunk of 8 rows lies in 8 different groups of banks.
template <int kDepth>
struct MatrixTile {
  static constexpr int kChunks = kDepth / kChunk;

  // Chunk `chunk` of row `row`.
  __device__ __forceinline__ uint16_t* At(int row, int chunk) const {
    const int turned = kChunks >= 8 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
    return data + (row * kChunks + turned) * kChunk;
  }
  // Begins to load rows [first_row, first_row + kRows) of `from`, whose position 0 is at `from` and
  // whose rows are `stride` apart; zeros beyond `depth` columns and `length` rows. The block has
  // kThreads. With kAgain nothing of the thread's places is kept in registers for the next time.
  // REQUIRES: stride below 2^30, first_row + kRows below 2^31.
  template <int kRows, int kThreads = kMatrixThreads, bool kAgain = false>
  __device__ __forceinline__ void Load(const uint16_t* from, int64_t stride, int64_t first_row,
                                       int64_t length, int64_t depth) const {
    const auto* const bytes = reinterpret_cast<const char*>(from);
    const int row_bytes = static_cast<int>(stride) * 2,
              thread = kAgain ? FreshThread() : static_cast<int>(threadIdx.x);
#pragma unroll
    for (int first = 0; first < kRows * kChunks; first += kThreads) {
      const int i = first + thread;
      if (kRows * kChunks % kThreads != 0 && i >= kRows * kChunks) break;
      const int row = i / kChunks, chunk = i % kChunks;
      const int position = static_cast<int>(first_row) + row;
      const bool inside =
          position < static_cast<int>(length) && chunk * kChunk < static_cast<int>(depth);
      const int64_t at = int64_t{position} * row_bytes + chunk * 16;
      CopyAsync(At(row, chunk), reinterpret_cast<const uint16_t*>(bytes + at), inside);
    }
  }
  // The factors below are read by lanes of which each says where a row of an 8 x 8 matrix lies.
  // Rows are multiples of 8 and chunks of 2, so that what depends on the lane is the same for all
  // of them.

  // The left factor of 16 rows from `row` on and 16 columns from chunk `chunk` on.
  __device__ __forceinline__ void Left(int row, int chunk, uint32_t (&parts)[4],
                                       int lane = static_cast<int>(threadIdx.x) % kWarp) const {
    const int part = lane / 8;
    LoadMatrices(parts, OfLane(row, part % 2 * 8 + lane % 8, chunk, part / 2));
  }
  // The left factor that is the transpose of 16 rows from `row` on and 16 columns from `chunk` on.
  __device__ __forceinline__ void LeftTransposed(int row, int chunk, uint32_t (&parts)[4],
                                                 int lane = static_cast<int>(threadIdx.x) %
                                                            kWarp) const {
    const int part = lane / 8;
    LoadTransposed(parts, OfLane(row, part / 2 * 8 + lane % 8, chunk, part % 2));
  }
  // Two right factors [16, 8] side by side whose columns are the 8 rows from `row` on and the 8
  // rows kNext behind these, and whose rows are the 16 columns from `chunk` on: parts 0 and 1 are
  // the first one's, 2 and 3 the second's.
  template <int kNext = 8>
  __device__ __forceinline__ void RightTransposed(int row, int chunk, uint32_t (&parts)[4],
                                                  int lane = static_cast<int>(threadIdx.x) %
                                                             kWarp) const {
    const int part = lane / 8;
    LoadMatrices(parts, OfLane(row, part / 2 * kNext + lane % 8, chunk, part % 2));
  }
  // The same of rows and columns as they lie.
  template <int kNext = 8>
  __device__ __forceinline__ void Right(int row, int chunk, uint32_t (&parts)[4],
                                        int lane = static_cast<int>(threadIdx.x) % kWarp) const {
    const int part = lane / 8;
    LoadTransposed(parts, OfLane(row, part % 2 * kNext + lane % 8, chunk, part / 2));
  }

  // At(row + lane_row, chunk + lane_chunk).
  __device__ __forceinline__ uint16_t* OfLane(int row, int lane_row, int chunk,
                                              int lane_chunk) const {
    const int turn = lane_chunk ^ (kChunks >= 8 ? lane_row & 7 : lane_row >> 1 & 3);
    uint16_t* const own = data + lane_row * kChunks * kChunk;
    return own + (chunk ^ turn) * kChunk + row * kChunks * kChunk;
  }

  uint16_t* data;
};

// Elements i and i + 1. REQUIRES: i is even; a 16-bit view is 4-byte aligned.
__device__ __forceinline__ void StorePair(const View& view, int64_t i, float low, float high) {
  if (view.type == Type::kF32) {
    static_cast<float*>(view.data)[i] = low;
    static_cast<float*>(view.data)[i + 1] = high;
    return;
  }
  auto* words = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(view.data) + i);
  *words = view.type == Type::kBF16 ? Pack<Type::kBF16>(low, high) : Pack<Type::kF16>(low, high);
}

// Returns whether pairs can be stored. Host code.
inline bool StoresPairs(const View& view) {
  return view.type == Type::kF32 || reinterpret_cast<uintptr_t>(view.data) % 4 == 0;
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_MATRIX_TILE_H_
