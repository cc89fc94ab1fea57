// SPDX-License-Identifier: Apache-2.0
// FP8 rounding against all numbers of the formats, which are listed by their definition.
#include "common/float8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "common/half.h"
#include "common/philox.h"

namespace lockstep {
namespace {

struct Named {
  Float8Format format;
  double largest;
  double smallest;
};
const Named kFormats[] = {{kE4M3, 448, 0x1p-9}, {kE5M2, 57344, 0x1p-16}};

// The numbers that are not negative, ascending; the one at an even place has an even code.
std::vector<double> NumbersOf(const Float8Format& format) {
  std::vector<double> numbers;
  const int fractions = 1 << format.fraction_bits;
  for (int exponent = format.least_exponent - 1; exponent <= format.most_exponent; ++exponent) {
    for (int fraction = 0; fraction < fractions; ++fraction) {
      const bool normal = exponent >= format.least_exponent;
      const double significand = (normal ? 1 : 0) + static_cast<double>(fraction) / fractions;
      numbers.push_back(std::ldexp(significand, normal ? exponent : format.least_exponent));
    }
  }
  return numbers;
}

// The nearest of `numbers` to x >= 0, of two the one at an even place.
double Nearest(const std::vector<double>& numbers, double x) {
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double near = std::fabs(numbers[i] - x), was = std::fabs(numbers[best] - x);
    if (near < was || (near == was && i % 2 == 0)) best = i;
  }
  return numbers[best];
}

TEST(Float8Test, FormatsHaveTheirNumbers) {
  for (const Named& named : kFormats) {
    const std::vector<double> numbers = NumbersOf(named.format);
    EXPECT_EQ(numbers[1], named.smallest);
    EXPECT_EQ(std::ldexp(1.75, named.format.most_exponent), named.largest);
    for (const double x : numbers) {
      if (x > named.largest) continue;
      const auto value = static_cast<float>(x);
      EXPECT_EQ(RoundToFloat8(named.format, 0, value), value);
      EXPECT_EQ(RoundToFloat8(named.format, 0, -value), -value);
    }
  }
}

TEST(Float8Test, RoundsToTheNearestAndToEven) {
  for (const Named& named : kFormats) {
    const std::vector<double> numbers = NumbersOf(named.format);
    std::vector<double> values;
    for (size_t i = 1; i < numbers.size() && numbers[i] <= named.largest; ++i) {
      const auto middle = static_cast<float>((numbers[i - 1] + numbers[i]) / 2);
      for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
        values.push_back(static_cast<double>(x));
      }
    }
    for (uint64_t i = 0; i < 5000; ++i) {
      const float u = UniformFloat(static_cast<uint32_t>(MixBits(i)));
      values.push_back(std::ldexp(static_cast<double>(u), static_cast<int>(i % 24) - 16));
    }
    for (const double x : values) {
      if (x > named.largest) continue;
      for (const int scale : {0, 5, -100, 100}) {
        const auto scaled = static_cast<float>(std::ldexp(x, -scale));
        const double want = std::ldexp(Nearest(numbers, x), -scale);
        const float is = RoundToFloat8(named.format, scale, scaled);
        ASSERT_EQ(static_cast<double>(is), want) << x << " by 2^" << scale;
        ASSERT_EQ(BFloat16::FromFloat(is).ToFloat(), is) << "not a number of bf16";
      }
    }
  }
}

// Codes count up through the numbers; the scale may be one that was made for more.
TEST(Float8Test, CodesAreThePlacesOfTheNumbers) {
  for (const Named& named : kFormats) {
    const std::vector<double> numbers = NumbersOf(named.format);
    for (size_t i = 0; i < numbers.size() && numbers[i] <= named.largest; ++i) {
      for (const int scale : {0, 7, -30}) {
        const auto x = static_cast<float>(std::ldexp(numbers[i], -scale));
        EXPECT_EQ(Float8Code(named.format, scale, x), i) << numbers[i];
        EXPECT_EQ(Float8Code(named.format, scale, -x), i + 128) << numbers[i];
        EXPECT_EQ(Float8Power(-scale) * static_cast<float>(numbers[i]), x);
        if (2 * numbers[i] > named.largest) continue;
        // A number of this scale is one of the next finer, too.
        const uint8_t finer = Float8Code(named.format, scale + 1, x);
        EXPECT_EQ(numbers[finer], 2 * numbers[i]);
      }
    }
    EXPECT_EQ(Float8Code(named.format, 0, std::nanf("")), 0x7f);
  }
}

TEST(Float8Test, ScaleBringsTheLargestToTheTop) {
  for (const Named& named : kFormats) {
    for (uint64_t i = 0; i < 2000; ++i) {
      const float u = 0.5f + UniformFloat(static_cast<uint32_t>(MixBits(i))) / 2;
      const float largest = std::ldexp(u, static_cast<int>(i % 200) - 90);
      const int scale = Float8ScaleExponent(named.format, largest);
      const double top = std::ldexp(static_cast<double>(largest), scale);
      ASSERT_LE(top, named.largest) << largest;
      ASSERT_GT(2 * top, named.largest) << largest;
    }
    EXPECT_EQ(Float8ScaleExponent(named.format, static_cast<float>(named.largest)), 0);
    EXPECT_EQ(Float8ScaleExponent(named.format, static_cast<float>(named.largest) * 1.001f), -1);
    EXPECT_EQ(Float8ScaleExponent(named.format, 0), 0);
    // Nothing that comes out is below the normal numbers of fp32.
    const float tiny = std::numeric_limits<float>::min();
    const int scale = Float8ScaleExponent(named.format, tiny);
    EXPECT_EQ(std::ldexp(named.smallest, -scale), 0x1p-126);
    EXPECT_EQ(RoundToFloat8(named.format, scale, tiny), tiny);
    const float most = std::numeric_limits<float>::max();
    EXPECT_EQ(RoundToFloat8(named.format, Float8ScaleExponent(named.format, most), 0x1.8p127f),
              0x1.8p127f);
  }
}

TEST(Float8Test, WhatIsNotFiniteIsNaNAndDoesNotCount) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {infinity, -infinity, std::nanf("")}) {
    EXPECT_EQ(Float8Magnitude(x), 0);
    EXPECT_TRUE(std::isnan(RoundToFloat8(kE4M3, 3, x)));
  }
  EXPECT_EQ(Float8Magnitude(-2.5f), 2.5f);
  EXPECT_EQ(Float8Magnitude(std::bit_cast<float>(1u)), 0);
  EXPECT_TRUE(std::signbit(RoundToFloat8(kE5M2, 0, -0.0f)));
  EXPECT_EQ(RoundToFloat8(kE4M3, 0, 0x1p-11f), 0);
}

}  // namespace
}  // namespace lockstep
