// SPDX-License-Identifier: Apache-2.0
#include "collectives/tree_sum.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>

#include "absl/algorithm/container.h"
#include "collectives/tree_kernels.h"
#include "common/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Floats of very different sizes, with subnormals, zeros of both signs and infinities.
std::vector<float> Awkward(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = random();
    std::memcpy(&values[i], &bits, 4);
    if (values[i] != values[i]) values[i] = 1.5f;
    if (i % 97 == 0) values[i] = std::numeric_limits<float>::denorm_min() * (1 + i % 5);
    if (i % 101 == 0) values[i] = -0.0f;
    if (i % 503 == 0) values[i] = std::numeric_limits<float>::infinity();
    if (i % 3 != 0) values[i] = std::ldexp(static_cast<float>(bits % 1000) - 500, i % 20);
  }
  return values;
}

float Serial(const std::vector<std::vector<float>>& leaves, ShardRange range, int64_t i) {
  if (range.size() == 1) return leaves[range.begin][i];
  const int middle = TreeSplit(range);
  const volatile float left = Serial(leaves, {range.begin, middle}, i);
  const volatile float right = Serial(leaves, {middle, range.end}, i);
  return left + right;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST(TreeSumTest, EveryDealGivesTheSerialBits) {
  constexpr int64_t kCount = 1237;  // more than two pieces of the general path, and odd
  for (const int shards : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    std::vector<std::vector<float>> leaves;
    for (int s = 0; s < shards; ++s) leaves.push_back(Awkward(kCount, 7 * s + 1));
    std::vector<float> expected(kCount);
    for (int64_t i = 0; i < kCount; ++i) expected[i] = Serial(leaves, {0, shards}, i);
    for (int world = 1; world <= shards; ++world) {
      std::vector<ShardRange> nodes;
      for (int r = 0; r < world; ++r) {
        for (const auto& node : WholeNodes(shards, DealShards(shards, world, r))) {
          nodes.push_back(node);
        }
      }
      // Returns what each worker brings: the sum inside each of its nodes.
      std::vector<std::vector<float>> values(nodes.size(), std::vector<float>(kCount));
      std::vector<const float*> inputs;
      for (size_t n = 0; n < nodes.size(); ++n) {
        for (int64_t i = 0; i < kCount; ++i) values[n][i] = Serial(leaves, nodes[n], i);
        inputs.push_back(values[n].data());
      }
      auto sum = TreeSum::Create(shards, nodes);
      ASSERT_TRUE(sum.ok()) << sum.status();
      EXPECT_EQ(absl::c_count(sum->program(), TreeSum::kAdd), std::ssize(nodes) - 1);
      std::vector<float> result(kCount);
      sum->Run(inputs, result.data(), kCount);
      EXPECT_TRUE(SameBits(result, expected)) << shards << " shards, " << world << " workers";
      sum->Run(inputs, values[0].data(), kCount);
      EXPECT_TRUE(SameBits(values[0], expected)) << "in place, " << shards << " of " << world;
    }
  }
}

TEST(TreeSumTest, AllInstructionSetsGiveTheSameBits) {
  const std::vector<TreeKernels> all = AllTreeKernels();
  const auto a = Awkward(333, 1), b = Awkward(333, 2), c = Awkward(333, 3), d = Awkward(333, 4);
  for (const TreeKernels& kernels : all) {
    for (const int64_t count : {0, 1, 7, 16, 33, 333}) {
      std::vector<float> want(count), got(count);
      all[0].add2(a.data(), b.data(), want.data(), count);
      kernels.add2(a.data(), b.data(), got.data(), count);
      EXPECT_TRUE(SameBits(got, want)) << kernels.name;
      all[0].add4(a.data(), b.data(), c.data(), d.data(), want.data(), count);
      kernels.add4(a.data(), b.data(), c.data(), d.data(), got.data(), count);
      EXPECT_TRUE(SameBits(got, want)) << kernels.name;
    }
  }
}

float Rounded(float x) { return BFloat16::FromFloat(x).ToFloat(); }

float SerialRounded(const std::vector<std::vector<float>>& leaves, ShardRange range, int64_t i) {
  if (range.size() == 1) return Rounded(leaves[range.begin][i]);
  const int middle = TreeSplit(range);
  const volatile float left = SerialRounded(leaves, {range.begin, middle}, i);
  const volatile float right = SerialRounded(leaves, {middle, range.end}, i);
  return Rounded(left + right);
}

bool SameNumbers(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], 4) != 0) return false;
  }
  return a.size() == b.size();
}

// Whoever adds which nodes: each sum is rounded as it is made, up to a limit.
TEST(TreeSumTest, RoundedSumsDoNotDependOnTheDeal) {
  constexpr int64_t kCount = 1237;
  for (const int shards : {1, 2, 3, 4, 5, 7, 8}) {
    std::vector<std::vector<float>> leaves;
    for (int s = 0; s < shards; ++s) leaves.push_back(Awkward(kCount, 7 * s + 1));
    for (const int64_t limit : {int64_t{0}, int64_t{1}, int64_t{1000}, kCount}) {
      const auto serial = [&](ShardRange range, int64_t i) {
        return i < limit ? SerialRounded(leaves, range, i) : Serial(leaves, range, i);
      };
      std::vector<float> expected(kCount);
      for (int64_t i = 0; i < kCount; ++i) expected[i] = serial({0, shards}, i);
      for (int world = 1; world <= shards; ++world) {
        std::vector<ShardRange> nodes;
        for (int r = 0; r < world; ++r) {
          for (const auto& node : WholeNodes(shards, DealShards(shards, world, r))) {
            nodes.push_back(node);
          }
        }
        std::vector<std::vector<float>> values(nodes.size(), std::vector<float>(kCount));
        std::vector<const float*> inputs;
        for (size_t n = 0; n < nodes.size(); ++n) {
          for (int64_t i = 0; i < kCount; ++i) values[n][i] = serial(nodes[n], i);
          inputs.push_back(values[n].data());
        }
        auto sum = TreeSum::Create(shards, nodes);
        ASSERT_TRUE(sum.ok()) << sum.status();
        std::vector<float> result(kCount);
        sum->Run(inputs, result.data(), kCount, limit);
        EXPECT_TRUE(SameNumbers(result, expected)) << shards << " of " << world << ", " << limit;
      }
    }
  }
}

TEST(TreeSumTest, RoundingIsToNearestEvenInEveryInstructionSet) {
  auto a = Awkward(4096, 1), b = Awkward(4096, 2), c = Awkward(4096, 3), d = Awkward(4096, 4);
  // Halfway between two neighbours, just beside it, the largest float, NaNs.
  const uint32_t special[] = {0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001,
                              0x7f7fffff, 0xff7fffff, 0x7f800001, 0x7fffffff,
                              0xffffffff, 0x00000001, 0x00008000, 0x80018000};
  std::memcpy(a.data(), special, sizeof(special));
  for (const TreeKernels& kernels : AllTreeKernels()) {
    for (const size_t count : {size_t{1}, size_t{7}, size_t{4096}}) {
      std::vector<float> want(count), got(count);
      kernels.round_bf16(a.data(), got.data(), static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) want[i] = Rounded(a[i]);
      EXPECT_TRUE(SameNumbers(got, want)) << kernels.name;
      kernels.add2_bf16(a.data(), b.data(), got.data(), static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) want[i] = Rounded(a[i] + b[i]);
      EXPECT_TRUE(SameNumbers(got, want)) << kernels.name;
      kernels.add4_bf16(a.data(), b.data(), c.data(), d.data(), got.data(),
                        static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) {
        want[i] = Rounded(Rounded(a[i] + b[i]) + Rounded(c[i] + d[i]));
      }
      EXPECT_TRUE(SameNumbers(got, want)) << kernels.name;
    }
  }
}

TEST(TreeSumTest, NodesThatDoNotMakeTheTreeAreRefused) {
  const auto status = [](int shards, std::vector<ShardRange> nodes) {
    return std::string(TreeSum::Create(shards, nodes).status().message());
  };
  EXPECT_THAT(status(4, {{0, 2}}), testing::HasSubstr("no rank holds the shards [2, 4)"));
  EXPECT_THAT(status(4, {{0, 1}, {1, 3}, {3, 4}}), testing::HasSubstr("[1, 3) are not a node"));
  EXPECT_THAT(status(2, {{0, 2}, {1, 2}}), testing::HasSubstr("[1, 2) is outside"));
  EXPECT_THAT(status(4, {{0, 2}, {3, 4}}), testing::HasSubstr("[3, 4) are not a node"));
}

}  // namespace
}  // namespace lockstep
