// SPDX-License-Identifier: Apache-2.0
#include "engine/models/normal.h"

#include <array>
#include <cmath>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

constexpr uint64_t kKey = 0x9ABC123456789;

// By the C library, element by element.
double Reference(int64_t i) {
  const auto words = Philox4x32({static_cast<uint32_t>(i / 4), 0, 0, 0}, kKey);
  const size_t pair = i % 4 < 2 ? 0 : 2;
  const double radius =
      std::sqrt(-2 * std::log((static_cast<double>(words[pair]) + 0.5) * 0x1.0p-32));
  const double angle = 2 * M_PI * 0x1.0p-32 * static_cast<double>(words[pair + 1]);
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST(FillNormal, IsBoxAndMullersToTheLastBitOfAFloat) {
  constexpr int64_t kCount = 1 << 18;
  std::vector<float> values(kCount);
  FillNormal(kKey, 0.02, values.data(), kCount);
  int64_t others = 0;
  double sum = 0, squares = 0, fourths = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double expected = 0.02 * Reference(i);
    const auto nearest = static_cast<float>(expected);
    ASSERT_NEAR(values[i], expected, std::abs(expected) * 0x1.0p-23) << i;
    others += values[i] != nearest ? 1 : 0;
    const double x = values[i] / 0.02;
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
  }
  EXPECT_LE(others, 1);  // rounding differs where the double lies within 1e-16 of the middle
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
  EXPECT_NEAR(fourths / kCount, 3, 0.1);
}

TEST(FillNormal, IsTheSameWithAndWithoutVectors) {
  for (const int64_t count : {1, 3, 255, 256, 257, 10000}) {
    std::vector<float> values(static_cast<size_t>(count) + 1, -7), portable = values;
    FillNormal(kKey, 1, values.data(), count);
    FillNormalPortably(kKey, 1, portable.data(), count);
    EXPECT_EQ(values, portable) << count;
    EXPECT_EQ(values.back(), -7) << count;
  }
}

TEST(FillNormal, BeginsAlikeForAnyCount) {
  std::vector<float> few(100), many(1000);
  FillNormal(kKey, 1, few.data(), 100);
  FillNormal(kKey, 1, many.data(), 1000);
  many.resize(100);
  EXPECT_EQ(few, many);
}

}  // namespace
}  // namespace lockstep::engine
