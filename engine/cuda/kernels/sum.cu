// SPDX-License-Identifier: Apache-2.0
// Sums of whole vectors: the gradients of shards.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;

// Workers' CPUs take subnormals for 0 (engine/cpu/numerics.h), and a sum must not depend on
// where it is made.
__device__ __forceinline__ float AddFlushed(float a, float b) {
#ifdef __CUDA_ARCH__
  float sum;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
#else
  return a + b;  // as the thread has been told to
#endif
}

__global__ void __launch_bounds__(kThreads) AddVectorsKernel(AddVectorsArgs args) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPerThread + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < args.count) args.out[i] = AddFlushed(args.a[i], args.b[i]);
  }
}

}  // namespace

Code LaunchAddVectors(const AddVectorsArgs& args, Stream stream) {
  return Launch(AddVectorsKernel, Grid(DivideUp(args.count, kThreads * kPerThread)), kThreads,
                stream, args);
}

}  // namespace lockstep::engine::cuda
