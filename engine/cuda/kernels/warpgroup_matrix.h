// SPDX-License-Identifier: Apache-2.0
// The instructions of sm_90a (H100, H200) by which four warps, a warpgroup, multiply 16-bit
// matrices whose right factor stays in shared memory (`wgmma`; the layouts are those of the PTX
// manual, "Asynchronous warpgroup level matrix instructions"). They run beside the warps: what they
// read and write may not be touched before WaitForProducts, and is not known to the compiler to
// change until Settle. The emulated GPU has its own version of this file, which does what it is
// given as late as it may, or at once. Thread-safety: device code; all threads of a warpgroup come
// together.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_WARPGROUP_MATRIX_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_WARPGROUP_MATRIX_H_

#include "engine/cuda/kernels/matrix_tile.h"

// Kernels of this kind are empty for other architectures than sm_90a; nobody launches them there.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LOCKSTEP_WARPGROUPS 1
#else
#define LOCKSTEP_WARPGROUPS 0
#endif

namespace lockstep::engine::cuda {

// Whether the module has code for sm_90a: on an H100 one without it would run empty kernels.
#if defined(__CUDACC__) && !defined(LOCKSTEP_SM90A)
inline constexpr bool kHasWarpgroups = false;
#else
inline constexpr bool kHasWarpgroups = true;
#endif

inline constexpr int kGroupThreads = 4 * kWarp;
// Rows, columns and depth of what one warpgroup has at a time; a row is 128 bytes.
inline constexpr int kGroupSide = 64;
// Tiles begin at multiples of this, so that their chunks are turned as the instruction has it.
inline constexpr int kTileAlignment = 1024;

// A left factor [64, 64]: of each 8 columns the warp's two halves of 16 rows.
using LeftFactor = uint32_t[8][2];

// How a right factor [16, 64] lies in a tile.
enum class Lies {
  kAsRows,     // a row of the tile is a row of the factor
  kAsColumns,  // a row of the tile is a column of the factor
};

// The instruction's word for the right factor in rows of 128 bytes, whose chunks of 16 are turned
// by the row's number (MatrixTile<64>): 8 rows further lie 1024 bytes further. `address` is the
// factor's first number's, in shared memory; turning is by address, so a factor may begin at any
// chunk of a tile's rows.
__device__ __forceinline__ uint64_t FactorAt(uint32_t address) {
  constexpr uint64_t kTurned128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{kTileAlignment >> 4} << 32;
  constexpr uint64_t kUnused = uint64_t{1} << 16;  // the distance between halves of wider factors
  return kTurned128 | kEightRows | kUnused | (address & 0x3ffff) >> 4;
}
// The right factors in a tile, the one from row `row` (a multiple of 8) and chunk `chunk` on: the
// words differ by constants.
struct Factors {
  __device__ __forceinline__ explicit Factors(const MatrixTile<kGroupSide>& tile)
      : first(FactorAt(SharedAddress(tile.data))) {}
  // The instruction's word of one of them.
  __device__ __forceinline__ uint64_t From(int row, int chunk) const {
    return first + static_cast<uint64_t>(row * 8 + chunk);
  }
  uint64_t first;
};

}  // namespace lockstep::engine::cuda

#ifndef __CUDACC__
#include <emulated_warpgroup_matrix.h>
#endif

namespace lockstep::engine::cuda {

#ifdef __CUDACC__
#if LOCKSTEP_WARPGROUPS

// Comes before products whose left factors or sums other instructions have written.
__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all products.
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Tells the compiler that the sums are there: comes after the wait and before their first use.
__device__ __forceinline__ void Settle(float (&sums)[8][4]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[t][i])::"memory");
  }
}
// From here on what the thread has put into shared memory, or has waited for, is seen by products
// that begin behind the next barrier.
__device__ __forceinline__ void PublishShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One of the block's barriers 1 to 15, at which `threads` threads come, some of them by ArriveAt:
// what all did before is there for those who wait. Whole warps come together.
__device__ __forceinline__ void WaitAt(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Comes without waiting.
__device__ __forceinline__ void ArriveAt(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A word that is 0, made where it is asked for and not before a condition.
__device__ __forceinline__ uint32_t Zero() {
  uint32_t zero;
  asm volatile("mov.u32 %0, 0;" : "=r"(zero));
  return zero;
}

// sums [64, 64] (+)= left [64, 16] right [16, 64], begun. A warp has 16 rows of `left` and `sums`,
// as fragments of `mma` (warp_matrix.h). Sums that are not added to are outputs alone: what was in
// their registers need not be there before.
#define LOCKSTEP_SUMS(io)                                                                        \
  io(s[0][0]), io(s[0][1]), io(s[0][2]), io(s[0][3]), io(s[1][0]), io(s[1][1]), io(s[1][2]),     \
      io(s[1][3]), io(s[2][0]), io(s[2][1]), io(s[2][2]), io(s[2][3]), io(s[3][0]), io(s[3][1]), \
      io(s[3][2]), io(s[3][3]), io(s[4][0]), io(s[4][1]), io(s[4][2]), io(s[4][3]), io(s[5][0]), \
      io(s[5][1]), io(s[5][2]), io(s[5][3]), io(s[6][0]), io(s[6][1]), io(s[6][2]), io(s[6][3]), \
      io(s[7][0]), io(s[7][1]), io(s[7][2]), io(s[7][3])
#define LOCKSTEP_OUT(x) "=f"(x)
#define LOCKSTEP_IN_OUT(x) "+f"(x)
// `factors` and `transposed` as the instruction has them, then the operands that they name.
#define LOCKSTEP_BEGIN_ONE(type, io, adds, factors, transposed, ...)                            \
  asm volatile(                                                                                 \
      "{.reg .pred adds;\n"                                                                     \
      "setp.ne.b32 adds, " #adds                                                                \
      ", 0;\n"                                                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " factors              \
      ", adds, 1, 1, " transposed ";}"                                                          \
      : LOCKSTEP_SUMS(io)                                                                       \
      : __VA_ARGS__                                                                             \
      : "memory")
// By kType and kAdd.
#define LOCKSTEP_BEGIN_PRODUCT(factors, transposed, ...)                              \
  if constexpr (kType == Type::kBF16 && kAdd) {                                       \
    LOCKSTEP_BEGIN_ONE("bf16", LOCKSTEP_IN_OUT, 1, factors, transposed, __VA_ARGS__); \
  } else if constexpr (kType == Type::kBF16) {                                        \
    LOCKSTEP_BEGIN_ONE("bf16", LOCKSTEP_OUT, 0, factors, transposed, __VA_ARGS__);    \
  } else if constexpr (kAdd) {                                                        \
    LOCKSTEP_BEGIN_ONE("f16", LOCKSTEP_IN_OUT, 1, factors, transposed, __VA_ARGS__);  \
  } else {                                                                            \
    LOCKSTEP_BEGIN_ONE("f16", LOCKSTEP_OUT, 0, factors, transposed, __VA_ARGS__);     \
  }
template <Type kType, Lies kLies, bool kAdd>
__device__ __forceinline__ void BeginProduct(float (&s)[8][4], const uint32_t& a0,
                                             const uint32_t& a1, const uint32_t& a2,
                                             const uint32_t& a3, uint64_t right) {
  LOCKSTEP_BEGIN_PRODUCT("{%32, %33, %34, %35}, %36", "%37", "r"(a0), "r"(a1), "r"(a2), "r"(a3),
                         "l"(right), "n"(kLies == Lies::kAsRows ? 1 : 0))
}
// The same with the left factor in shared memory, whose rows are a tile's.
template <Type kType, bool kAdd>
__device__ __forceinline__ void BeginSharedProduct(float (&s)[8][4], uint64_t left,
                                                   uint64_t right) {
  LOCKSTEP_BEGIN_PRODUCT("%32, %33", "0, 0", "l"(left), "l"(right))
}
#undef LOCKSTEP_OUT
#undef LOCKSTEP_IN_OUT
#undef LOCKSTEP_SUMS
#undef LOCKSTEP_BEGIN_ONE
#undef LOCKSTEP_BEGIN_PRODUCT

#endif  // LOCKSTEP_WARPGROUPS
#endif  // __CUDACC__

#if LOCKSTEP_WARPGROUPS

// Makes it zeros.
__device__ __forceinline__ void Clear(LeftFactor& left) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    left[t][0] = Zero();
    left[t][1] = Zero();
  }
}

// sums [64, 64] = left times the transposed rows of `right`, begun.
template <Type kType>
__device__ __forceinline__ void BeginScores(float (&sums)[8][4], const LeftFactor& left,
                                            const MatrixTile<kGroupSide>& right) {
  const Factors factors(right);
  BeginProduct<kType, Lies::kAsColumns, false>(sums, left[0][0], left[0][1], left[1][0], left[1][1],
                                               factors.From(0, 0));
#pragma unroll
  for (int t = 2; t < 8; t += 2) {
    BeginProduct<kType, Lies::kAsColumns, true>(sums, left[t][0], left[t][1], left[t + 1][0],
                                                left[t + 1][1], factors.From(0, t));
  }
}
// The same with the left factor in shared memory.
template <Type kType>
__device__ __forceinline__ void BeginScores(float (&sums)[8][4], const MatrixTile<kGroupSide>& left,
                                            const MatrixTile<kGroupSide>& right) {
  const Factors lefts(left), rights(right);
  BeginSharedProduct<kType, false>(sums, lefts.From(0, 0), rights.From(0, 0));
#pragma unroll
  for (int t = 2; t < 8; t += 2) {
    BeginSharedProduct<kType, true>(sums, lefts.From(0, t), rights.From(0, t));
  }
}
// sums [64, 64] += left times the rows of `right`, begun.
template <Type kType>
__device__ __forceinline__ void BeginSums(float (&sums)[8][4], const LeftFactor& left,
                                          const MatrixTile<kGroupSide>& right) {
  const Factors factors(right);
#pragma unroll
  for (int t = 0; t < 8; t += 2) {
    BeginProduct<kType, Lies::kAsRows, true>(sums, left[t][0], left[t][1], left[t + 1][0],
                                             left[t + 1][1], factors.From(8 * t, 0));
  }
}
// The warp's part of a left factor: 16 rows from `row` on of a tile.
__device__ __forceinline__ void LoadLeft(const MatrixTile<kGroupSide>& tile, int row,
                                         LeftFactor& left) {
  const int lane = FreshLane();
#pragma unroll
  for (int t = 0; t < 8; t += 2) {
    uint32_t parts[4];
    tile.Left(row, t, parts, lane);
    left[t][0] = parts[0];
    left[t][1] = parts[1];
    left[t + 1][0] = parts[2];
    left[t + 1][1] = parts[3];
  }
}

#endif  // LOCKSTEP_WARPGROUPS

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_WARPGROUP_MATRIX_H_
