// SPDX-License-Identifier: Apache-2.0
// What all kernels share: loads and stores of any element type, sums of a warp and of a block in a
// fixed order, addressed randomness, launches. Sums depend on shapes alone; nothing uses atomic
// additions of floats. Included by .cu files only.
// Thread-safety: device code; Launch by one thread for each context.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_DEVICE_CODE_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_DEVICE_CODE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarp = 32;

// ---- elements ----

// Bits of 16-bit numbers to fp32, exactly; back, to nearest even.
__device__ __forceinline__ float WidenBF16(unsigned bits) { return __uint_as_float(bits << 16); }
// As above.
__device__ __forceinline__ unsigned NarrowBF16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
// As above.
__device__ __forceinline__ float WidenF16(unsigned bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
// As above.
__device__ __forceinline__ unsigned NarrowF16(float x) {
  return __half_as_ushort(__float2half_rn(x));
}

// Element i.
__device__ __forceinline__ float Load(const View& view, int64_t i) {
  if (view.type == Type::kF32) return static_cast<const float*>(view.data)[i];
  const unsigned bits = static_cast<const uint16_t*>(view.data)[i];
  return view.type == Type::kBF16 ? WidenBF16(bits) : WidenF16(bits);
}
// Element i = x, rounded to nearest even.
__device__ __forceinline__ void Store(const View& view, int64_t i, float x) {
  if (view.type == Type::kF32) {
    static_cast<float*>(view.data)[i] = x;
  } else {
    static_cast<uint16_t*>(view.data)[i] =
        static_cast<uint16_t>(view.type == Type::kBF16 ? NarrowBF16(x) : NarrowF16(x));
  }
}

// 16 bytes, or 8, at an aligned place of device memory, in one access. The compiler would cut a
// store into words where conditions surround it, and put off a load until just before its first
// use, where the next one waits for it.
__device__ __forceinline__ uint4 LoadWords(const void* from) {
#ifdef __CUDA_ARCH__
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(from)));
  return v;
#else
  return *static_cast<const uint4*>(from);
#endif
}
// As above.
__device__ __forceinline__ uint2 LoadTwoWords(const void* from) {
#ifdef __CUDA_ARCH__
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(__cvta_generic_to_global(from)));
  return v;
#else
  return *static_cast<const uint2*>(from);
#endif
}
// As above.
__device__ __forceinline__ void StoreWords(void* to, uint32_t x, uint32_t y, uint32_t z,
                                           uint32_t w) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
#else
  uint4 v;
  v.x = x;
  v.y = y;
  v.z = z;
  v.w = w;
  *static_cast<uint4*>(to) = v;
#endif
}
// As above.
__device__ __forceinline__ void StoreTwoWords(void* to, uint32_t x, uint32_t y) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(x),
               "r"(y)
               : "memory");
#else
  uint2 v;
  v.x = x;
  v.y = y;
  *static_cast<uint2*>(to) = v;
#endif
}
// Two numbers of 16 bits as one word, rounded to nearest even.
__device__ __forceinline__ uint32_t Narrow(Type type, float low, float high) {
  return type == Type::kBF16 ? NarrowBF16(low) | NarrowBF16(high) << 16
                             : NarrowF16(low) | NarrowF16(high) << 16;
}
// The number in the lower, or the upper, half of a word.
__device__ __forceinline__ float WidenLow(Type type, uint32_t word) {
  return type == Type::kBF16 ? WidenBF16(word & 0xffff) : WidenF16(word & 0xffff);
}
// As above.
__device__ __forceinline__ float WidenHigh(Type type, uint32_t word) {
  return type == Type::kBF16 ? WidenBF16(word >> 16) : WidenF16(word >> 16);
}

// Four elements.
struct Four {
  float x[4];
};
// Elements i to i + 3. REQUIRES: i is a multiple of 4, the view is Aligned.
__device__ __forceinline__ Four LoadFour(const View& view, int64_t i) {
  if (view.type == Type::kF32) {
    const uint4 v = LoadWords(static_cast<const float*>(view.data) + i);
    return {
        {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)}};
  }
  const uint2 v = LoadTwoWords(static_cast<const uint16_t*>(view.data) + i);
  return {{WidenLow(view.type, v.x), WidenHigh(view.type, v.x), WidenLow(view.type, v.y),
           WidenHigh(view.type, v.y)}};
}
// The same, back.
__device__ __forceinline__ void StoreFour(const View& view, int64_t i, const Four& four) {
  if (view.type == Type::kF32) {
    StoreWords(static_cast<float*>(view.data) + i, __float_as_uint(four.x[0]),
               __float_as_uint(four.x[1]), __float_as_uint(four.x[2]), __float_as_uint(four.x[3]));
    return;
  }
  StoreTwoWords(static_cast<uint16_t*>(view.data) + i, Narrow(view.type, four.x[0], four.x[1]),
                Narrow(view.type, four.x[2], four.x[3]));
}

// Returns whether LoadFour works on the view, or there is none. Host code.
inline bool Aligned(const View& view) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(view.data);
  return address % (view.type == Type::kF32 ? 16 : 8) == 0;
}

// Eight elements, which move 16 or 32 bytes at once.
struct Eight {
  float x[8];
};
// Elements i to i + 7. REQUIRES: i is a multiple of 8, the view is AlignedEight.
__device__ __forceinline__ Eight LoadEight(const View& view, int64_t i) {
  Eight eight;
  if (view.type == Type::kF32) {
    const Four low = LoadFour(view, i), high = LoadFour(view, i + 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      eight.x[e] = low.x[e];
      eight.x[4 + e] = high.x[e];
    }
    return eight;
  }
  const uint4 v = LoadWords(static_cast<const uint16_t*>(view.data) + i);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    eight.x[2 * w] = WidenLow(view.type, words[w]);
    eight.x[2 * w + 1] = WidenHigh(view.type, words[w]);
  }
  return eight;
}
// The same, back.
__device__ __forceinline__ void StoreEight(const View& view, int64_t i, const Eight& eight) {
  const float(&x)[8] = eight.x;
  if (view.type == Type::kF32) {
    StoreFour(view, i, {{x[0], x[1], x[2], x[3]}});
    StoreFour(view, i + 4, {{x[4], x[5], x[6], x[7]}});
    return;
  }
  StoreWords(static_cast<uint16_t*>(view.data) + i, Narrow(view.type, x[0], x[1]),
             Narrow(view.type, x[2], x[3]), Narrow(view.type, x[4], x[5]),
             Narrow(view.type, x[6], x[7]));
}
// Eight elements as they lie, before their type is looked at: the loads of several operands are
// then on their way together, whatever their types are.
struct RawEight {
  uint4 low;
  uint4 high;  // of fp32
};
// Elements i to i + 7; zeros where there is no view. REQUIRES: as LoadEight.
__device__ __forceinline__ RawEight LoadRaw(const View& view, int64_t i) {
  RawEight raw = {};
  const bool wide = view.type == Type::kF32;
  const void* from = static_cast<const char*>(view.data) + i * (wide ? 4 : 2);
#ifdef __CUDA_ARCH__
  // Without a branch, which would keep the loads apart.
  const int any = view.data != nullptr, high = any && wide;
  asm volatile(
      "{.reg .pred any, high;\n"
      "setp.ne.s32 any, %9, 0;\n"
      "setp.ne.s32 high, %10, 0;\n"
      "@any ld.global.v4.u32 {%0, %1, %2, %3}, [%8];\n"
      "@high ld.global.v4.u32 {%4, %5, %6, %7}, [%8 + 16];}"
      : "+r"(raw.low.x), "+r"(raw.low.y), "+r"(raw.low.z), "+r"(raw.low.w), "+r"(raw.high.x),
        "+r"(raw.high.y), "+r"(raw.high.z), "+r"(raw.high.w)
      : "l"(__cvta_generic_to_global(from)), "r"(any), "r"(high));
#else
  if (view.data == nullptr) return raw;
  raw.low = LoadWords(from);
  if (wide) raw.high = LoadWords(static_cast<const char*>(from) + 16);
#endif
  return raw;
}
// The numbers that they are.
__device__ __forceinline__ Eight Widen(Type type, const RawEight& raw) {
  const uint32_t low[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
  const uint32_t high[4] = {raw.high.x, raw.high.y, raw.high.z, raw.high.w};
  Eight eight;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (type == Type::kF32) {
      eight.x[w] = __uint_as_float(low[w]);
      eight.x[4 + w] = __uint_as_float(high[w]);
    } else {
      eight.x[2 * w] = WidenLow(type, low[w]);
      eight.x[2 * w + 1] = WidenHigh(type, low[w]);
    }
  }
  return eight;
}

// Returns what a value is once it is stored with the view's type.
__device__ __forceinline__ float RoundedAs(Type type, float x) {
  if (type == Type::kF32) return x;
  return type == Type::kBF16 ? WidenBF16(NarrowBF16(x)) : WidenF16(NarrowF16(x));
}

// Returns whether LoadEight works on the view, or there is none. Host code.
inline bool AlignedEight(const View& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

// ---- sums in a fixed order ----

// All lanes get the sum of their values.
template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
  return x;
}
// All lanes get the largest of their values.
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lanes));
  }
  return x;
}

// All threads of the block get the sum. REQUIRES: kThreads threads in x, all of which come;
// `shared` has kThreads / 32 elements.
template <int kThreads, typename T>
__device__ __forceinline__ T BlockSum(T x, T* shared) {
  x = WarpSum(x);
  __syncthreads();  // the last use of `shared` is over
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / kWarp; ++w) sum += shared[w];
  return sum;
}
template <int kThreads>
__device__ __forceinline__ float BlockMax(float x, float* shared) {
  x = WarpMax(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float most = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / kWarp; ++w) most = fmaxf(most, shared[w]);
  return most;
}

// ---- addressed randomness (common/philox.h) ----

struct Words {
  uint32_t x[4];
};
// A round's step of the four words.
__device__ __forceinline__ void PhiloxRound(uint32_t (&c)[4], uint32_t k0, uint32_t k1) {
  const uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
  const uint32_t high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
  c[0] = high1 ^ c[1] ^ k0;
  c[2] = high0 ^ c[3] ^ k1;
  c[1] = low1;
  c[3] = low0;
}
template <int kRounds>
__device__ __forceinline__ Words Philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                        uint64_t key) {
  uint32_t c[4] = {c0, c1, c2, c3};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    PhiloxRound(c, k0, k1);
    k0 += kPhiloxStep0;
    k1 += kPhiloxStep1;
  }
  return {{c[0], c[1], c[2], c[3]}};
}
// The same with the rounds' keys, which need no additions where they are a kernel's arguments.
__device__ __forceinline__ Words PhiloxOf(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                          const RoundKeys& keys) {
  uint32_t c[4] = {c0, c1, c2, c3};
#pragma unroll
  for (int round = 0; round < kDropRounds; ++round) {
    PhiloxRound(c, keys.low[round], keys.high[round]);
  }
  return {{c[0], c[1], c[2], c[3]}};
}

// A word by number, without an array in memory.
__device__ __forceinline__ uint32_t WordAt(const Words& words, int number) {
  const uint32_t low = number % 2 == 0 ? words.x[0] : words.x[1];
  const uint32_t high = number % 2 == 0 ? words.x[2] : words.x[3];
  return number < 2 ? low : high;
}

// The site of a run's address; see cpu::DropRule::At.
struct Site {
  uint64_t key;
  uint32_t step;
  uint32_t shard;
};
// Where a run's numbers are addressed. REQUIRES: drop.address.
__device__ __forceinline__ Site SiteOf(const Drop& drop) {
  const uint32_t high = static_cast<uint32_t>(drop.address[1]) << 16;
  return {drop.key, static_cast<uint32_t>(drop.address[0]),
          static_cast<uint32_t>(drop.address[2]) | high};
}
// The 16-bit number of an element: RowKernels::random_halves.
__device__ __forceinline__ uint32_t DrawHalf(const Site& site, uint64_t element) {
  const uint64_t counter = 8 * (element / 64) + element % 16 / 2;
  const Words words =
      Philox<7>(static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), site.step,
                site.shard, site.key);
  return WordAt(words, static_cast<int>(element % 64 / 16)) >> (element % 2 * 16) & 0xffff;
}
// The same by a call: unrolled loops would repeat it.
__device__ __attribute__((noinline)) inline uint32_t RandomHalf(const Site& site,
                                                                uint64_t element) {
  return DrawHalf(site, element);
}
// The numbers of four elements from a multiple of 4 on.
__device__ __forceinline__ void RandomHalves(const Site& site, uint64_t element,
                                             uint32_t (&halves)[4]) {
  const uint64_t counter = 8 * (element / 64) + element % 16 / 2;
  const int word = static_cast<int>(element % 64 / 16);
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const uint64_t c = counter + static_cast<uint64_t>(pair);
    const Words words = Philox<7>(static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32),
                                  site.step, site.shard, site.key);
    const uint32_t bits = WordAt(words, word);
    halves[2 * pair] = bits & 0xffff;
    halves[2 * pair + 1] = bits >> 16;
  }
}
// The word of an element: RowKernels::random_words.
__device__ __attribute__((noinline)) inline uint32_t RandomWord(uint64_t key, uint32_t step,
                                                                uint32_t shard, uint64_t element) {
  const uint64_t counter = 16 * (element / 64) + element % 16;
  const Words words = Philox<10>(static_cast<uint32_t>(counter),
                                 static_cast<uint32_t>(counter >> 32), step, shard, key);
  return WordAt(words, static_cast<int>(element % 64 / 16));
}

// ---- launches ----

// a / b, rounded up.
inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename... P, typename... A>
Code Launch(void (*kernel)(P...), dim3 grid, dim3 block, Stream stream, const A&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = static_cast<cudaStream_t>(stream);
  return static_cast<Code>(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...));
}
// A thread for each eight columns of each row: the columns' threads lie side by side in x, so that
// nobody divides, as many as a row needs but for a warp at most.
struct Eights {
  dim3 grid;
  dim3 block;
};
// Those of rows of `columns`, which are whole eights or end with what is not there. Host code.
inline Eights EightsOf(int64_t rows, int64_t columns) {
  unsigned across = 1;
  while (across < kWarp && across * 8 < columns) across *= 2;
  const unsigned down = 256 / across;
  return {dim3(static_cast<unsigned>(DivideUp(rows, down)),
               static_cast<unsigned>(DivideUp(columns, 8 * across))),
          dim3(across, down)};
}
// The thread's row and the first of its columns.
__device__ __forceinline__ int64_t OwnRow() {
  return int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
}
// As above.
__device__ __forceinline__ int64_t OwnColumn() {
  return (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8;
}

// A grid of x * y * z blocks.
inline dim3 Grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_DEVICE_CODE_H_
