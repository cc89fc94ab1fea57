// SPDX-License-Identifier: Apache-2.0
// The check that an instruction set passes before its kernels are used: every kernel is looked at,
// and what fails is not used.
#include "engine/cpu/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/cpu/arch.h"

namespace lockstep::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SelfCheckTest, EverySetOfThisCpuPasses) {
  for (const Isa isa : UsableIsas()) EXPECT_EQ(FirstWrongKernel(TablesFor(isa)), "") << Name(isa);
  EXPECT_EQ(DetectIsa(), CpuIsa());
  EXPECT_FALSE(CpuName().empty());
}

// Does nothing and answers the same every time: whatever a register held before must not pass for
// an answer.
int Nothing() { return 1; }

// With each kernel of a table in turn replaced by one that does nothing, from pointer `first` on;
// `set` puts a table among the others.
template <typename Table, typename Set>
void ExpectEachIsLookedAt(const Table& good, size_t first, const Set& set) {
  static_assert(sizeof(Table) % sizeof(void*) == 0);
  int (*const nothing)() = Nothing;
  for (size_t slot = first; slot < sizeof(Table) / sizeof(void*); ++slot) {
    Table broken = good;
    char* const at = reinterpret_cast<char*>(&broken) + slot * sizeof(void*);
    void* kernel = nullptr;
    std::memcpy(&kernel, at, sizeof kernel);
    if (kernel == nullptr) continue;
    std::memcpy(at, &nothing, sizeof nothing);
    KernelTables tables = TablesFor(CpuIsa());
    set(&tables, &broken);
    EXPECT_NE(FirstWrongKernel(tables), "") << "pointer " << slot;
  }
}

TEST(SelfCheckTest, LooksAtEveryKernel) {
  const KernelTables good = TablesFor(CpuIsa());
  // Behind the sizes of tiles and blocks.
  constexpr size_t kFirst = offsetof(SimdKernels, tile) / sizeof(void*);
  static_assert(offsetof(SimdKernels, tile) % sizeof(void*) == 0);
  ExpectEachIsLookedAt(*good.simd, kFirst, [](auto* all, auto* table) { all->simd = table; });
  ExpectEachIsLookedAt(*good.rows, 0, [](auto* all, auto* table) { all->rows = table; });
  ExpectEachIsLookedAt(*good.optim, 0, [](auto* all, auto* table) { all->optim = table; });
  ExpectEachIsLookedAt(*good.image, 0, [](auto* all, auto* table) { all->image = table; });
  ExpectEachIsLookedAt(*good.half, 0, [](auto* all, auto* table) { all->half = table; });
}

// Kernels with one small mistake each.
void LastOfTile(const Tile& tile) {
  TablesFor(CpuIsa()).simd->tile[3](tile);
  tile.c[2 * tile.c_stride + tile.columns - 1] += 0.01f;
}
void NormWithoutEps(const float* x, const float* gamma, const float* beta, int64_t n, float,
                    float* y, float* mean, float* rstd) {
  TablesFor(CpuIsa()).rows->layer_norm(x, gamma, beta, n, 0.01f, y, mean, rstd);
}
void AdamBehind(const AdamArgs& args, const float* gradient, int64_t n, float* m, float* v,
                float* w) {
  TablesFor(CpuIsa()).optim->adam(args, gradient, n - 1, m, v, w);
}
void CutInsteadOfRounded(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    y[i] = static_cast<uint16_t>(bits >> 16);
  }
}
void PoolBeyond(const float* const* x, int64_t count, int64_t channels, float* y) {
  TablesFor(CpuIsa()).image->largest(x, count, channels, y);
  y[channels] = 0;
}

TEST(SelfCheckTest, NamesTheWrongKernel) {
  const KernelTables good = TablesFor(CpuIsa());
  KernelTables tables = good;
  SimdKernels simd = *good.simd;
  simd.tile[3] = LastOfTile;
  tables.simd = &simd;
  EXPECT_EQ(FirstWrongKernel(tables), "tile of 3 rows");
  tables = good;
  RowKernels rows = *good.rows;
  rows.layer_norm = NormWithoutEps;
  tables.rows = &rows;
  EXPECT_EQ(FirstWrongKernel(tables), "layer_norm");
  tables = good;
  OptimKernels optim = *good.optim;
  optim.adam = AdamBehind;
  tables.optim = &optim;
  EXPECT_EQ(FirstWrongKernel(tables), "adam");
  tables = good;
  ImageSimd image = *good.image;
  image.largest = PoolBeyond;
  tables.image = &image;
  EXPECT_EQ(FirstWrongKernel(tables), "largest");
  tables = good;
  HalfKernels half = *good.half;
  half.narrow_bf16 = CutInsteadOfRounded;
  tables.half = &half;
  EXPECT_EQ(FirstWrongKernel(tables), "narrow_bf16");
}

// This CPU's kernels stand for those of a set that it need not have.
TEST(SelfCheckTest, TakesTheNextLowerSet) {
  const KernelTables good = TablesFor(CpuIsa());
  KernelTables broken = good;
  SimdKernels simd = *good.simd;
  simd.tile[3] = LastOfTile;
  broken.simd = &simd;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& why) { warnings.push_back(why); };
  const auto only_avx512 = [&](Isa isa) { return isa == Isa::kAvx512 ? broken : good; };
  const auto only_bf16 = [&](Isa isa) { return isa == Isa::kAvx512Bf16 ? broken : good; };
  EXPECT_EQ(HighestSound(Isa::kAvx512Bf16, only_bf16, warn), Isa::kAvx512);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("avx512_bf16"));
  warnings.clear();
  EXPECT_EQ(HighestSound(Isa::kAvx512, only_avx512, warn), Isa::kAvx2);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0],
              AllOf(HasSubstr("avx512"), HasSubstr("tile of 3 rows"), HasSubstr(CpuName())));
  EXPECT_EQ(HighestSound(
                Isa::kAvx512, [&](Isa) { return broken; }, warn),
            Isa::kPortable);
  EXPECT_EQ(warnings.size(), 3u);
  warnings.clear();
  EXPECT_EQ(HighestSound(
                Isa::kAvx512, [&](Isa) { return good; }, warn),
            Isa::kAvx512);
  EXPECT_EQ(HighestSound(Isa::kAvx2, only_avx512, warn), Isa::kAvx2);
  EXPECT_EQ(HighestSound(
                Isa::kPortable, [&](Isa) { return broken; }, warn),
            Isa::kPortable);
  EXPECT_TRUE(warnings.empty());
}

}  // namespace
}  // namespace lockstep::engine
