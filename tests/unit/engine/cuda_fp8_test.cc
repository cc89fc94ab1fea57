// SPDX-License-Identifier: Apache-2.0
// Training in FP8 on a GPU: layers whose extents suit the library are multiplied in bytes.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cuda/module.h"
#include "engine/cuda/tuning.h"
#include "engine/exec/plan.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/gradient_slots.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

// Two layers between the first and the last, with extents that are multiples of 16.
TrainSpec WideMlp() {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{64, 48, 32}};
  spec.micro_batch = 16;
  spec.precision = "bf16";
  spec.fp8 = true;
  return spec;
}

TrainSpec OnEmulatedGpu(TrainSpec spec) {
  cuda::UseTables(cuda::EmulatedTables());
  spec.device = DeviceKind::kCuda;
  return spec;
}

TEST(CudaFp8Test, EveryProductBetweenTheFirstAndTheLastLayerIsInBytes) {
  Job cpu(WideMlp()), gpu(OnEmulatedGpu(WideMlp()));
  const std::vector<float> a = ByParameter(*cpu.plan, PoisonedGradients(&cpu, 1, 0));
  const int64_t before = emulation::Fp8ProductsRun();
  const std::vector<float> b = ByParameter(*gpu.plan, PoisonedGradients(&gpu, 1, 0));
  EXPECT_EQ(emulation::Fp8ProductsRun() - before, 6 * WideMlp().accumulate);
  double squares = 0, errors = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]), 2);
    errors += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  // A sum in another order is now and then rounded to a neighbour.
  EXPECT_LT(std::sqrt(errors / squares), 0.05);
}

// As graphs, with late streams, in another order of threads.
TEST(CudaFp8Test, BitsDoNotDependOnHowItIsRun) {
  Job gpu(OnEmulatedGpu(WideMlp()));
  const std::vector<float> first = PoisonedGradients(&gpu, 1, 2);
  emulation::SetOrder(emulation::Order::kBackward);
  for (int run = 0; run < 3; ++run) {
    EXPECT_TRUE(EqualBits(PoisonedGradients(&gpu, 1, 2), first)) << run;
  }
  emulation::SetOrder(emulation::Order::kForward);
}

TEST(CudaFp8Test, FilesKnowTheseProductsFromOthers) {
  cuda::MatmulShape shape{.m = 16, .n = 16, .k = 16, .factors = cuda::Type::kBF16};
  const std::string plain = cuda::DescribeProduct(shape);
  shape.a_fp8 = shape.b_fp8 = cuda::Fp8::kE4M3;
  const std::string bytes = cuda::DescribeProduct(shape);
  shape.a_fp8 = cuda::Fp8::kE5M2;
  EXPECT_EQ(bytes, plain + ":e4m3-e4m3");
  EXPECT_EQ(cuda::DescribeProduct(shape), plain + ":e5m2-e4m3");
}

}  // namespace
}  // namespace lockstep::engine
