// SPDX-License-Identifier: Apache-2.0
// The instructions of a warp that CUDA C++ has no words for: products of 16-bit matrices by tensor
// cores, matrices out of shared memory, copies into it that run beside the kernel (sm_80 and newer;
// the layouts are those of the PTX manual). The emulated GPU has its own version of this file.
//
// A fragment spreads a matrix over the lanes of a warp: lane l has, of each 8 x 8 part, the
// elements of row l / 4 in columns 2 (l % 4) and the next one, as two 16-bit halves of a word or
// two floats. Thread-safety: device code; all lanes of a warp come together.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_WARP_MATRIX_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_WARP_MATRIX_H_

#include "engine/cuda/kernels/device_code.h"

#ifndef __CUDACC__
#include <emulated_warp_matrix.h>
#else

namespace lockstep::engine::cuda {

// c [16, 8] += a [16, 16] b [16, 8], the factors in kType, sums in fp32. The parts of `a` are
// (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15); those of `b`, whose lanes hold
// columns instead of rows, its upper and lower half; c's pairs are rows 0-7, then 8-15.
template <Type kType>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  if constexpr (kType == Type::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// c = a b, as above.
template <Type kType>
__device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kType == Type::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }
}

// Four 8 x 8 matrices of 16-bit numbers out of shared memory: lanes 8 i to 8 i + 7 say where the
// rows of matrix i lie, each 16 bytes, 16-byte aligned.
__device__ __forceinline__ void LoadMatrices(uint32_t (&parts)[4], const uint16_t* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void LoadTransposed(uint32_t (&parts)[4], const uint16_t* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
               : "r"(address)
               : "memory");
}

// Begins to copy 16 bytes into shared memory; zeros when not `inside`, and `from` is then not read.
__device__ __forceinline__ void CopyAsync(uint16_t* to, const uint16_t* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
// Ends a group of the thread's copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for the thread's own copies but for the newest kPending groups; the other threads' are
// there after a barrier.
template <int kPending = 0>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Two floats as kType, `low` in the low half, each rounded to nearest even.
template <Type kType>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  uint32_t word;
  if constexpr (kType == Type::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// 2^x to two units of the last place; 0 of -infinity.
__device__ __forceinline__ float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The bits that two of the three have, in one instruction, which the compiler does not find.
__device__ __forceinline__ uint32_t MostOf(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t most;
  asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(most) : "r"(a), "r"(b), "r"(c));
  return most;
}
// All bits of a half where its highest one is set, none else, of either half.
__device__ __forceinline__ uint32_t SignsOfHalves(uint32_t halves) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(halves));
  return signs;
}

// Sets bit `bit`, a constant, where `is`: one instruction that is done or not.
__device__ __forceinline__ void SetBit(uint32_t& bits, int bit, bool is) {
  asm("{.reg .pred is;\n"
      "setp.ne.u32 is, %1, 0;\n"
      "@is or.b32 %0, %0, %2;}"
      : "+r"(bits)
      : "r"(static_cast<uint32_t>(is)), "r"(1u << bit));
}

// The thread's number, and its lane, as numbers that are known again at every call: what is worked
// out from them is not kept in registers from one to the next.
__device__ __forceinline__ int FreshThread() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread & 1023;  // so that it is known not to be negative
}
// As above.
__device__ __forceinline__ int FreshLane() { return FreshThread() % kWarp; }

// The block's shared memory, as large as the launch says; 1024-byte aligned.
__device__ __forceinline__ uint16_t* SharedMemory() {
  extern __shared__ __align__(1024) uint16_t lockstep_shared_memory[];
  return lockstep_shared_memory;
}
// Where it lies, as instructions name it.
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace lockstep::engine::cuda

#endif  // __CUDACC__

namespace lockstep::engine::cuda {

// As Launch, with `bytes` of shared memory. Host code.
template <typename... P, typename... A>
Code LaunchShared(void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes, Stream stream,
                  const A&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
  // More than 48 KiB have to be asked for.
  const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (allowed != cudaSuccess) return static_cast<Code>(allowed);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  return static_cast<Code>(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...));
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_WARP_MATRIX_H_
