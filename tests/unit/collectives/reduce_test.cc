// SPDX-License-Identifier: Apache-2.0
#include "collectives/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(HalfTest, EveryFloat16GoesThereAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Float16{static_cast<uint16_t>(bits)}.ToFloat();
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Float16::FromFloat(value).ToFloat()));
    } else {
      ASSERT_EQ(Float16::FromFloat(value).bits, bits) << value;
    }
  }
}

TEST(HalfTest, Float16RoundsToNearestEven) {
  EXPECT_EQ(Float16{0x0001}.ToFloat(), std::ldexp(1.0f, -24));
  EXPECT_EQ(Float16{0x03ff}.ToFloat(), std::ldexp(1023.0f, -24));
  EXPECT_EQ(Float16{0x7bff}.ToFloat(), 65504.0f);
  // The middle between two neighbours goes to the even one, above and below it to the nearer one.
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = Float16{static_cast<uint16_t>(bits)}.ToFloat();
    const float high = Float16{static_cast<uint16_t>(bits + 1)}.ToFloat();
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(Float16::FromFloat(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(Float16::FromFloat(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(Float16::FromFloat(std::nextafter(middle, 1e9f)).bits, bits + 1);
  }
  EXPECT_EQ(Float16::FromFloat(65519.99f).bits, 0x7bff);
  EXPECT_EQ(Float16::FromFloat(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16::FromFloat(-1e30f).bits, 0xfc00);
}

TEST(HalfTest, BFloat16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f7f; ++bits) {
    const float low = BFloat16{static_cast<uint16_t>(bits)}.ToFloat();
    ASSERT_EQ(BFloat16::FromFloat(low).bits, bits);
    const float middle = std::bit_cast<float>(bits << 16 | 0x8000);
    ASSERT_EQ(BFloat16::FromFloat(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(BFloat16::FromFloat(std::bit_cast<float>(bits << 16 | 0x7fff)).bits, bits);
    ASSERT_EQ(BFloat16::FromFloat(std::bit_cast<float>(bits << 16 | 0x8001)).bits, bits + 1);
  }
  EXPECT_TRUE(std::isnan(BFloat16::FromFloat(std::numeric_limits<float>::quiet_NaN()).ToFloat()));
}

TEST(ReduceTest, HalvesAreAccumulatedInFloat) {
  // 1 + 2^-9 + 2^-9 is 1 when each sum is rounded to bfloat16, and 1 + 2^-8 -> rounds to even 1 in
  // bfloat16; with four of them the fp32 sum reaches 1 + 2^-7.
  std::vector<BFloat16> one = {BFloat16::FromFloat(1.0f)};
  std::vector<BFloat16> tiny = {BFloat16::FromFloat(std::ldexp(1.0f, -9))};
  const void* inputs[] = {one.data(), tiny.data(), tiny.data(), tiny.data(), tiny.data()};
  BFloat16 sum;
  ReduceInOrder(inputs, &sum, 1, DType::kBFloat16, ReduceOp::kSum);
  EXPECT_EQ(sum.ToFloat(), 1.0f + std::ldexp(1.0f, -7));
}

TEST(ReduceTest, SumsInRankOrder) {
  const float a = 1e8f, b = -1e8f, c = 1.0f;
  float out;
  const void* abc[] = {&a, &b, &c};
  ReduceInOrder(abc, &out, 1, DType::kFloat32, ReduceOp::kSum);
  EXPECT_EQ(out, 1.0f);
  const void* cab[] = {&c, &a, &b};
  ReduceInOrder(cab, &out, 1, DType::kFloat32, ReduceOp::kSum);
  EXPECT_EQ(out, 0.0f);
}

// Lengths around the pieces and vectors; every place where the result may go.
TEST(ReduceTest, FloatsAreSummedInOrderIntoAnyInput) {
  for (const size_t ranks : {1, 2, 3, 4, 5}) {
    for (const size_t count : {0, 1, 31, 1023, 1024, 1025, 3001}) {
      std::vector<std::vector<float>> data(ranks + 1, std::vector<float>(count));
      std::vector<float> expected(count);
      for (size_t i = 0; i < count; ++i) {
        for (size_t r = 0; r < ranks; ++r) {
          data[r][i] = std::ldexp(1.0f + static_cast<float>((i * 37 + r * 101) % 89),
                                  static_cast<int>((i + 5 * r) % 23));
          expected[i] = r == 0 ? data[r][i] : expected[i] + data[r][i];
        }
      }
      for (size_t out = 0; out <= ranks; ++out) {
        std::vector<std::vector<float>> copy = data;
        std::vector<const void*> inputs;
        for (size_t r = 0; r < ranks; ++r) inputs.push_back(copy[r].data());
        ReduceInOrder(inputs, copy[out].data(), static_cast<int64_t>(count), DType::kFloat32,
                      ReduceOp::kSum);
        ASSERT_EQ(copy[out], expected) << ranks << " inputs of " << count << " into " << out;
      }
    }
  }
}

TEST(ReduceTest, MaxMinAndWrap) {
  const std::vector<int32_t> a = {1, -5, std::numeric_limits<int32_t>::max()};
  const std::vector<int32_t> b = {2, -9, 1};
  const void* inputs[] = {a.data(), b.data()};
  std::vector<int32_t> out(3);
  ReduceInOrder(inputs, out.data(), 3, DType::kInt32, ReduceOp::kMax);
  EXPECT_THAT(out, testing::ElementsAre(2, -5, std::numeric_limits<int32_t>::max()));
  ReduceInOrder(inputs, out.data(), 3, DType::kInt32, ReduceOp::kMin);
  EXPECT_THAT(out, testing::ElementsAre(1, -9, 1));
  ReduceInOrder(inputs, out.data(), 3, DType::kInt32, ReduceOp::kSum);
  EXPECT_THAT(out, testing::ElementsAre(3, -14, std::numeric_limits<int32_t>::min()));
}

}  // namespace
}  // namespace lockstep
