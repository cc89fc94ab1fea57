// SPDX-License-Identifier: Apache-2.0
// Rows of layer normalisation that belong to a warp, which keeps them in registers, and what
// dropout leaves of their elements. Included by .cu files only. Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_WARP_ROW_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_WARP_ROW_H_

#include "engine/cuda/kernels/device_code.h"
#include "engine/cuda/kernels/row_types.h"

namespace lockstep::engine::cuda {

// Returns what dropout, if there is any, leaves of `value`, element `i` of `count`.
__device__ __forceinline__ float Dropped(const Drop& drop, int64_t count, int64_t i, float value) {
  if (drop.address == nullptr) return value;
  const uint64_t before = static_cast<uint64_t>(drop.address[3]) * static_cast<uint64_t>(count);
  const uint32_t half = DrawHalf(SiteOf(drop), before + static_cast<uint64_t>(i));
  return half >= drop.threshold ? value * drop.scale : 0;
}
// The same of eight elements from `i` on, a multiple of 8; `count` is one too.
__device__ __forceinline__ void DropEight(const Drop& drop, int64_t count, int64_t i, Eight* x) {
  if (drop.address == nullptr) return;
  const Site site = SiteOf(drop);
  const uint64_t before = static_cast<uint64_t>(drop.address[3]) * static_cast<uint64_t>(count);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t numbers[4];
    RandomHalves(site, before + static_cast<uint64_t>(i + 4 * half), numbers);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& value = x->x[4 * half + e];
      value = numbers[e] >= drop.threshold ? value * drop.scale : 0;
    }
  }
}

// A lane's elements of a row: chunk c is elements (32 c + lane) * 8 to + 7.
template <int kChunks>
struct WarpRow {
  __device__ __forceinline__ WarpRow(int64_t own_row, int64_t columns)
      : row(own_row),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        columns(static_cast<int>(columns)) {}
  // The first of the lane's columns in a chunk, and its place in the matrix.
  __device__ __forceinline__ int Column(int chunk) const { return (chunk * kWarp + lane) * 8; }
  __device__ __forceinline__ bool Has(int chunk) const { return Column(chunk) < columns; }
  // As above.
  __device__ __forceinline__ int64_t At(int chunk) const { return row * columns + Column(chunk); }
  // The sum over the row of f(chunk, element).
  template <typename F>
  __device__ __forceinline__ float Sum(F f) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!Has(c)) continue;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += f(c, e);
    }
    return WarpSum(sum);
  }

  int64_t row;
  int lane;
  int columns;
};

// Columns of a chunk, and of the longest row. Longer ones, and odd ones, are a block's.
inline constexpr int64_t kWarpColumns = kWarp * 8;
inline bool FitsWarps(int64_t columns) { return columns % 8 == 0 && columns <= kMostWarpColumns; }

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_WARP_ROW_H_
