// SPDX-License-Identifier: Apache-2.0
// What CUDA refuses to launch is refused by the emulated GPU, and kernels on more rows than a
// grid's second extent has are launched.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/cuda/kernels/tables.h"
#include "tests/emulation/emulation.h"
#include "tests/emulation/include/cuda_runtime.h"

namespace lockstep::engine::cuda {
namespace {

void Nothing(int) {}
void NothingElse(int) {}

cudaError_t Launched(dim3 grid, dim3 block, size_t shared, void (*kernel)(int) = Nothing) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  return cudaLaunchKernelEx(&config, kernel, 0);
}

TEST(CudaLaunchTest, ExtentsBeyondCudasAreRefused) {
  EXPECT_EQ(Launched({70000, 1, 1}, 32, 0), cudaSuccess);
  EXPECT_EQ(Launched({1, 65535, 1}, 32, 0), cudaSuccess);
  EXPECT_EQ(Launched({1, 1, 65535}, 32, 0), cudaSuccess);
  for (const dim3 grid : {dim3(0x80000000u, 1, 1), dim3(1, 65536, 1), dim3(1, 1, 65536),
                          dim3(0, 1, 1), dim3(1, 0, 1)}) {
    EXPECT_EQ(Launched(grid, 32, 0), cudaErrorInvalidConfiguration)
        << grid.x << " " << grid.y << " " << grid.z;
  }
  EXPECT_EQ(Launched(1, {512, 2}, 0), cudaSuccess);
  for (const dim3 block :
       {dim3(1025), dim3(512, 3), dim3(1, 1, 65), dim3(0), dim3(65536, 65536, 1)}) {
    EXPECT_EQ(Launched(1, block, 0), cudaErrorInvalidConfiguration)
        << block.x << " " << block.y << " " << block.z;
  }
}

TEST(CudaLaunchTest, MuchSharedMemoryHasToBeAllowed) {
  EXPECT_EQ(Launched(1, 32, 48 << 10), cudaSuccess);
  EXPECT_EQ(Launched(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(Nothing, kAttribute, 100 << 10), cudaSuccess);
  EXPECT_EQ(Launched(1, 32, 100 << 10), cudaSuccess);
  EXPECT_EQ(Launched(1, 32, (100 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(Launched(1, 32, 100 << 10, NothingElse), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(Nothing, kAttribute, (227 << 10) + 1), cudaErrorInvalidValue);
}

// A GPU moves 16 bytes to and from multiples of 16 alone.
TEST(CudaLaunchTest, OddPlacesAreRefused) {
  alignas(16) unsigned char memory[48] = {};
  const Kernels& kernels = *EmulatedTables()->kernels;
  EXPECT_EQ(kernels.fill({memory, 1}, nullptr), 0);
  EXPECT_DEATH(kernels.fill({memory + 8, 1}, nullptr), "");
}

// The second warp waits for what the first one does, which goes on without it and is late: a second
// wait finds what came between.
void Handing(int* seen) {
  static int given;
  const bool gives = threadIdx.x < 32;
  if (threadIdx.x == 0) given = 1;
  if (gives) {
    emulation::ArriveAt(1, 64);
    if (threadIdx.x == 0) given = 2;
    emulation::ArriveAt(2, 64);
  } else {
    emulation::WaitAt(1, 64);
    seen[threadIdx.x - 32] = given;
    emulation::WaitAt(2, 64);
    seen[threadIdx.x] = given;
  }
}

void Unmet(int) {
  if (threadIdx.x < 32) emulation::ArriveAt(1, 64);
}

TEST(CudaLaunchTest, WhoArrivesAtABarrierDoesNotWaitAndIsLate) {
  int seen[64] = {};
  for (const auto order : {emulation::Order::kForward, emulation::Order::kBackward}) {
    emulation::SetOrder(order);
    cudaLaunchConfig_t config = {};
    config.gridDim = 2;
    config.blockDim = 64;
    int* const to = seen;
    ASSERT_EQ(cudaLaunchKernelEx(&config, Handing, to), cudaSuccess);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(seen[i], i < 32 ? 1 : 2) << i;
  }
  emulation::SetOrder(emulation::Order::kForward);
  EXPECT_DEATH(Launched(1, 64, 0, Unmet), "a block ends while threads have come to a barrier");
}

// An average of each two rows of a long signal, and its gradient.
TEST(CudaLaunchTest, PoolingHasMoreRowsThanAGridsSecondExtent) {
  constexpr int64_t kRows = 65600;
  std::vector<float> x(kRows + 1), y(kRows, -7), dx(kRows + 1, -7);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1000);
  PoolArgs args;
  args.pool = Pool::kAverage;
  args.window.images = args.window.width = args.window.channels = args.window.columns = 1;
  args.window.height = kRows + 1;
  args.window.rows = kRows;
  args.window.kernel[0] = 2;
  args.x = {x.data(), Type::kF32};
  args.out = {y.data(), Type::kF32};
  const Kernels& kernels = *EmulatedTables()->kernels;
  ASSERT_EQ(kernels.pool(args, nullptr), 0);
  args.pool = Pool::kAverageBackward;
  args.x = {};
  args.dy = {y.data(), Type::kF32};
  args.out = {dx.data(), Type::kF32};
  ASSERT_EQ(kernels.pool(args, nullptr), 0);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], (x[i] + x[i + 1]) / 2) << i;
  for (size_t i = 0; i < dx.size(); ++i) {
    ASSERT_EQ(dx[i], (i == 0 ? 0 : y[i - 1] / 2) + (i == kRows ? 0 : y[i] / 2)) << i;
  }
}

// The images beyond a grid's third extent.
TEST(CudaLaunchTest, PoolingAndTransposesHaveMoreImagesThanAGridsExtents) {
  constexpr int64_t kImages = 65600;
  std::vector<float> x(2 * kImages), y(kImages, -7), turned(2 * kImages, -7);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  PoolArgs args;
  args.window.images = kImages;
  args.window.height = args.window.channels = args.window.rows = args.window.columns = 1;
  args.window.width = args.window.kernel[1] = 2;
  args.x = {x.data(), Type::kF32};
  args.out = {y.data(), Type::kF32};
  const Kernels& kernels = *EmulatedTables()->kernels;
  ASSERT_EQ(kernels.pool(args, nullptr), 0);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], x[2 * i + 1]) << i;
  TransposeArgs transpose;
  transpose.in = {x.data(), Type::kF32};
  transpose.out = {turned.data(), Type::kF32};
  transpose.images = kImages;
  transpose.rows = 1;
  transpose.columns = 2;
  ASSERT_EQ(kernels.transpose(transpose, nullptr), 0);
  EXPECT_EQ(turned, x);
}

}  // namespace
}  // namespace lockstep::engine::cuda
