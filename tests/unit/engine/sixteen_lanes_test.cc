// SPDX-License-Identifier: Apache-2.0
// The loops of sixteen lanes, lowered to AVX2, so that they run on CPUs without AVX-512 too.
#include <cpuid.h>
#include <gtest/gtest.h>

#include "engine/cpu/arch.h"
#include "engine/cpu/self_check.h"
#include "tests/unit/engine/lowered_avx512.h"

namespace lockstep::engine {
namespace {

// clang 14's __builtin_cpu_supports does not know it.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

TEST(SixteenLanesTest, GiveTheBitsOfPlainVectors) {
  if (CpuIsa() < Isa::kAvx2 || !HasF16c()) {
    GTEST_SKIP() << "this CPU has no AVX2 and F16C";
  }
  const KernelTables lowered = {&simd::kLoweredKernels, &simd::kLoweredRowKernels,
                                &simd::kLoweredOptimKernels, &simd::kLoweredImage,
                                &simd::kLoweredHalfKernels};
  EXPECT_EQ(lowered.simd->tile_columns, SimdFor(Isa::kAvx512Bf16).tile_columns);
  EXPECT_EQ(lowered.simd->tile_rows, SimdFor(Isa::kAvx512Bf16).tile_rows);
  EXPECT_EQ(FirstWrongKernel(lowered), "");
}

}  // namespace
}  // namespace lockstep::engine
