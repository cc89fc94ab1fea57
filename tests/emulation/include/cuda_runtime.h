// SPDX-License-Identifier: Apache-2.0
// CUDA C++ on the host, for tests on machines without a GPU: the part of <cuda_runtime.h> that our
// kernels use. A kernel's threads are coroutines on one thread of the host; blocks run one after
// another. So what the kernels compute is tested, and the races that another order of threads
// shows; nothing is said about their speed or about the real compiler. Thread-safety: one thread at
// a time.
#ifndef LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_RUNTIME_H_
#define LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_RUNTIME_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// ---- what a thread may call ----

// All threads of the block must come.
void __syncthreads();

namespace emulation {
// The value that lane `source` of the caller's warp gives. All lanes must come.
uint64_t Exchange(uint64_t value, int source);
int Lane();
// What the lanes of the caller's warp give, by lane, until the warp's next exchange. All lanes must
// come.
inline constexpr size_t kSharedBytes = 32;
const void* ShareBytes(const void* bytes, size_t count);
template <typename T>
const T* Share(const T& value) {
  static_assert(sizeof(T) <= kSharedBytes);
  return static_cast<const T*>(ShareBytes(&value, sizeof(T)));
}
// Returns whether that many bytes can be moved at once, there.
bool IsAligned(const void* pointer, size_t bytes);
// A copy that is made when the thread waits for its group; null: zeros. REQUIRES: both are aligned.
void CopyLater(void* to, const void* from, size_t bytes);
void CommitCopies();
void WaitForCopies(int pending);
// Products of sm_90a (emulated_warpgroup_matrix.h): `product` runs at once or when its group is
// waited for, which is a part of the program's order; all lanes of a warp come.
void BeginProducts();
void ProductLater(std::function<void()> product);
void CommitProducts();
void WaitForProducts();
// Says that the thread's copies into shared memory are to be seen by products.
void PublishShared();
// The block's barriers 1 to 15, at which `threads` threads come: one that waits, and one that does
// not, which goes on when no other thread can. Ends the test where a block leaves one half come.
void WaitAt(int barrier, int threads);
void ArriveAt(int barrier, int threads);
// The block's dynamic shared memory, 1024-byte aligned.
void* SharedMemory();
inline constexpr size_t kDynamicBytes = 227 << 10;
}  // namespace emulation

inline void __syncwarp(unsigned = 0xffffffffu) { emulation::Exchange(0, 0); }
template <typename T>
inline T __shfl_sync(unsigned, T value, int source) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulation::Exchange(bits, source & 31);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, emulation::Lane() ^ lanes);
}
inline int __any_sync(unsigned, int one) {
  const int* all = emulation::Share(one);
  int any = 0;
  for (int lane = 0; lane < 32; ++lane) any |= all[lane];
  return any != 0;
}

inline int atomicAdd(int* address, int value) {
  const int before = *address;
  *address += value;
  return before;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

// ---- the runtime ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotReady = 600,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorLaunchFailure = 719
};
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0,
                          cudaEventDisableTiming = 2, cudaHostAllocDefault = 0,
                          cudaHostRegisterDefault = 0;

namespace emulation {
// Runs on `stream`, or records while a capture is on.
cudaError_t Do(cudaStream_t stream, std::function<void()> work);
void RunGrid(dim3 grid, dim3 block, size_t shared, const std::function<void()>& thread);
// What CUDA refuses: grids and blocks beyond the extents of compute capability 9.0, and more shared
// memory than the kernel was allowed.
cudaError_t CheckLaunch(const cudaLaunchConfig_t& config, const void* kernel);
// Allows the kernel so much dynamic shared memory, which without it is 48 KiB.
cudaError_t AllowShared(const void* kernel, int bytes);
}  // namespace emulation

enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute, int bytes) {
  return emulation::AllowShared(reinterpret_cast<const void*>(kernel), bytes);
}

template <typename... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), P... args) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  const size_t shared = config->dynamicSmemBytes;
  const cudaError_t refused =
      emulation::CheckLaunch(*config, reinterpret_cast<const void*>(kernel));
  if (refused != cudaSuccess) return refused;
  return emulation::Do(config->stream,
                       [=] { emulation::RunGrid(grid, block, shared, [=] { kernel(args...); }); });
}

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* pointer);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

#endif  // LOCKSTEP_TESTS_EMULATION_INCLUDE_CUDA_RUNTIME_H_
