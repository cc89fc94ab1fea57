// SPDX-License-Identifier: Apache-2.0
#include "engine/math/math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(MathTest, LogIsTheLogarithm) {
  for (int i = -20000; i <= 20000; ++i) {
    const double x = std::exp(0.03 * i), expected = std::log(x);
    ASSERT_NEAR(Log(x), expected, 3e-16 * std::max(1.0, std::fabs(expected))) << x;
  }
  EXPECT_EQ(Log(1), 0);
  EXPECT_EQ(Log(0), -kInfinity);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Log(-1)));
  EXPECT_TRUE(std::isnan(Log(NAN)));
}

TEST(MathTest, ExpIsTheExponential) {
  for (int i = -7000; i <= 7000; ++i) {
    const double x = 0.1 * i, expected = std::exp(x);
    ASSERT_NEAR(Exp(x), expected, 3e-16 * (1 + std::fabs(x)) * expected) << x;
  }
  EXPECT_EQ(Exp(0), 1);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
}

TEST(MathTest, PowersOfWholeNumbersAreProducts) {
  EXPECT_EQ(Power(0.5, 3), 0.125);
  EXPECT_EQ(Power(3, 5), 243);
  EXPECT_EQ(Power(2, -2), 0.25);
  EXPECT_EQ(Power(0, 0), 1);
  EXPECT_EQ(Power(0, 0.5), 0);
  for (int i = 0; i < 4000; ++i) {
    for (const double x : {0.9, 0.999, 0.123}) {
      for (const double y : {1.0 * i, 0.37 * i}) {
        const double expected = std::pow(x, y);
        if (expected < 1e-300) continue;
        ASSERT_NEAR(Power(x, y), expected, 1e-12 * expected) << x << " " << y;
      }
    }
  }
}

TEST(MathTest, CosineOfTurnsHasItsZerosAndOnes) {
  EXPECT_EQ(CosineOfTurns(0), 1);
  EXPECT_EQ(CosineOfTurns(0.25), 0);
  EXPECT_EQ(CosineOfTurns(0.5), -1);
  EXPECT_EQ(CosineOfTurns(-0.75), 0);
  for (int i = -5000; i <= 5000; ++i) {
    const double turns = i * 0.000317;
    ASSERT_NEAR(CosineOfTurns(turns), std::cos(2 * M_PI * turns), 3e-15) << turns;
  }
}

// The bits that every machine computes: they reach weights.
TEST(MathTest, HasTheseBits) {
  EXPECT_EQ(Log(10), 0x1.26bb1bbb55516p+1);
  EXPECT_EQ(Exp(1), 0x1.5bf0a8b14576ap+1);
  EXPECT_EQ(Power(0.999, 1000), 0x1.788526411edacp-2);
  EXPECT_EQ(Power(0.3, 1.7), 0x1.08819f76d9f8dp-3);
  EXPECT_EQ(CosineOfTurns(0.1), 0x1.9e3779b97f4a8p-1);
}

}  // namespace
}  // namespace lockstep::engine
