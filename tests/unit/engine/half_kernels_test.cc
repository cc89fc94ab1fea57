// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/simd/half_kernels.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "common/half.h"
#include "common/philox.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

float ToFloat(DType type, uint16_t bits) {
  return type == DType::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}
uint16_t FromFloat(DType type, float x) {
  return type == DType::kBF16 ? BFloat16::FromFloat(x).bits : Float16::FromFloat(x).bits;
}

class HalfKernelsTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, HalfKernelsTest, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return Name(info.param); });

TEST_P(HalfKernelsTest, WidensEveryValue) {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back(static_cast<uint16_t>(bits));
  for (const Isa isa : UsableIsas()) {
    std::vector<float> wide(all.size());
    HalfKernelsFor(isa).Widen(GetParam(), all.data(), 0x10000, wide.data());
    for (size_t i = 0; i < all.size(); ++i) {
      const float want = ToFloat(GetParam(), all[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(want))
            << Name(isa) << " " << i;
      }
    }
  }
}

// Pairs of every value with one far from it: sums rounded once, and gradients that pass where the
// other is above 0 or NaN, also in place.
TEST(Bf16ArithmeticTest, IsThatOfFp32RoundedOnce) {
  const auto value = [](uint16_t bits) { return BFloat16{bits}.ToFloat(); };
  std::vector<uint16_t> a, b;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    a.push_back(static_cast<uint16_t>(bits));
    b.push_back(static_cast<uint16_t>(bits * 40503));
  }
  a.insert(a.end(), {0x3f80, 0x0000, 0x8000});  // not a whole vector
  b.insert(b.end(), {0x3f81, 0x8000, 0x8000});
  const auto count = static_cast<int64_t>(a.size());
  for (const Isa isa : UsableIsas()) {
    SCOPED_TRACE(Name(isa));
    std::vector<uint16_t> sum(a.size()), gradient = a;
    HalfKernelsFor(isa).add_bf16(a.data(), b.data(), count, sum.data());
    HalfKernelsFor(isa).relu_backward_bf16(gradient.data(), b.data(), count, gradient.data());
    for (size_t i = 0; i < a.size(); ++i) {
      const float want = value(a[i]) + value(b[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(value(sum[i]))) << i;
      } else {
        ASSERT_EQ(sum[i], BFloat16::FromFloat(want).bits) << i;
      }
      // By its bits: a test before may have left denormals to count as 0.
      const bool above = b[i] > 0 && b[i] <= 0x7f80, nan = (b[i] & 0x7fff) > 0x7f80;
      ASSERT_EQ(gradient[i], above || nan ? a[i] : 0) << i;
    }
  }
}

// Wherever it lies in a block of vectors, and beside it the numbers as without it.
TEST_P(HalfKernelsTest, NarrowsNanAndItsNeighbours) {
  constexpr size_t kCount = 67;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = 1.0f + static_cast<float>(i) * 0.01171875f;
  for (const Isa isa : UsableIsas()) {
    for (size_t at = 0; at < kCount; ++at) {
      std::vector<float> some = values;
      some[at] = std::bit_cast<float>(at % 2 == 0 ? 0x7f800001u : 0xffffffffu);
      std::vector<uint16_t> narrow(kCount);
      HalfKernelsFor(isa).Narrow(GetParam(), some.data(), kCount, narrow.data());
      for (size_t i = 0; i < kCount; ++i) {
        if (i == at) {
          ASSERT_TRUE(std::isnan(ToFloat(GetParam(), narrow[i]))) << Name(isa) << " " << at;
        } else {
          ASSERT_EQ(narrow[i], FromFloat(GetParam(), values[i])) << Name(isa) << " " << at;
        }
      }
    }
  }
}

// Every value of the format, what lies halfway to the next one, and the floats beside those.
TEST_P(HalfKernelsTest, NarrowsToNearestEven) {
  std::vector<float> values = {std::numeric_limits<float>::max(), 1e-45f, 65519.996f, 65520.0f};
  for (uint32_t bits = 0; bits < 0xffff; ++bits) {
    const float at = ToFloat(GetParam(), static_cast<uint16_t>(bits));
    const float next = ToFloat(GetParam(), static_cast<uint16_t>(bits + 1));
    if (std::isnan(at) || std::isnan(next)) continue;
    const auto middle =
        static_cast<float>((static_cast<double>(at) + static_cast<double>(next)) / 2);
    for (const float x : {at, middle}) {
      values.push_back(x);
      values.push_back(std::nextafter(x, 1e30f));
      values.push_back(std::nextafter(x, -1e30f));
    }
  }
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-std::numeric_limits<float>::quiet_NaN());
  const auto count = static_cast<int64_t>(values.size());
  for (const Isa isa : UsableIsas()) {
    std::vector<uint16_t> narrow(values.size());
    HalfKernelsFor(isa).Narrow(GetParam(), values.data(), count, narrow.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(ToFloat(GetParam(), narrow[i])));
      } else {
        ASSERT_EQ(narrow[i], FromFloat(GetParam(), values[i])) << Name(isa) << " " << values[i];
      }
    }
  }
}

uint16_t Stochastic(DType type, float x, uint32_t word) {
  uint16_t y = 0;
  NarrowStochastically(type, &x, &word, 1, &y);
  return y;
}

TEST_P(HalfKernelsTest, StochasticRoundingKeepsWhatTheFormatHas) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = ToFloat(GetParam(), static_cast<uint16_t>(bits));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(ToFloat(GetParam(), Stochastic(GetParam(), x, 7))));
      continue;
    }
    for (const uint32_t word : {0u, 0xffffffffu, 0x12345678u}) {
      ASSERT_EQ(Stochastic(GetParam(), x, word), bits) << x;
    }
  }
}

// A value a third of the way up becomes the upper neighbour a third of the time; so do those far
// below the format's smallest value, as seldom as it may be.
TEST_P(HalfKernelsTest, StochasticRoundingIsRightOnAverage) {
  struct Case {
    float low;
    double share;
  };
  const float subnormal = ToFloat(GetParam(), 0x0123);
  for (const auto& [low, share] :
       {Case{1.0f, 1.0 / 3}, Case{-3.0f, 1.0 / 3}, Case{0.01f, 1.0 / 3}, Case{subnormal, 1.0 / 3},
        Case{0.0f, 1.0 / 3}, Case{0.0f, 1.0 / 1000}}) {
    const uint16_t bits = FromFloat(GetParam(), low);
    const double at = static_cast<double>(ToFloat(GetParam(), bits));
    const double step =
        static_cast<double>(ToFloat(GetParam(), static_cast<uint16_t>(bits + 1))) - at;
    const auto x = static_cast<float>(at + step * share);
    int ups = 0;
    constexpr int kTries = 30000;
    for (int i = 0; i < kTries; ++i) {
      const uint16_t y =
          Stochastic(GetParam(), x, static_cast<uint32_t>(MixBits(static_cast<uint64_t>(i))));
      ASSERT_TRUE(y == bits || y == bits + 1) << low;
      ups += y != bits;
    }
    EXPECT_NEAR(static_cast<double>(ups) / kTries, share, 3 * std::sqrt(share / kTries))
        << low << " and " << share << " of a step";
  }
}

}  // namespace
}  // namespace lockstep::engine
