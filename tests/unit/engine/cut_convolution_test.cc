// SPDX-License-Identifier: Apache-2.0
// Convolutions of bf16 images, which are cut into a few images at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/half.h"
#include "engine/graph/graph.h"
#include "engine/ops/ops.h"
#include "tests/unit/engine/run_graph.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kChannels = 64;

std::vector<float> Made(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i * 7919 % 257 - 128) / 100);
  }
  return values;
}

// A 3 x 3 convolution of `images` images of 4 x 4 pixels, which are 4 of Winograd's tiles each,
// with bf16 operands: as they are, or widened before, and its result rounded to bf16.
std::vector<float> Convolved(int64_t images, bool widened) {
  const Shape x_shape = {images, 4, 4, kChannels}, w_shape = {kChannels, kChannels, 3, 3};
  Graph graph;
  const auto as = [&graph](Value value, DType type) {
    return graph.Add(ops::kCast, {value}, {{kDTypeAttr, std::string(Name(type))}});
  };
  std::vector<Value> operands;
  for (const auto& [name, shape] : {std::pair{"x", x_shape}, {"w", w_shape}}) {
    const Value half = as(graph.AddLeaf(ops::kInput, {DType::kF32, shape}, name), DType::kBF16);
    operands.push_back(widened ? as(half, DType::kF32) : half);
  }
  Attrs attrs = {{"padding", Shape{1, 1}}};
  if (!widened) attrs.Set(kDTypeAttr, std::string(Name(DType::kBF16)));
  Value y = graph.Add(ops::kConv2d, operands, attrs);
  if (widened) y = as(y, DType::kBF16);
  graph.AddOutput("y", as(y, DType::kF32));
  EXPECT_TRUE(graph.status().ok()) << graph.status();
  return RunGraph(graph,
                  {{"x", Made(images * 16 * kChannels)}, {"w", Made(kChannels * kChannels * 9)}})
      .at("y");
}

// The last cut of 65 images is a single one, of 130 two: too few tiles for Winograd's algorithm by
// themselves.
TEST(CutConvolutionTest, EachImageIsDoneAsTheWholeIs) {
  for (const int64_t images : {12, 13, 64, 65, 130}) {
    EXPECT_EQ(Convolved(images, false), Convolved(images, true)) << images << " images";
  }
}

// The weight gradient of an odd number of channels as docs/same_bits.md has it: images so many at a
// time, of these a chain over each 256 pixels.
constexpr int64_t kSide = 28, kColours = 3, kFilters = 8, kTaps = 9;

std::vector<float> DefinedGradient(const std::vector<float>& dy, const std::vector<float>& x,
                                   int64_t images) {
  constexpr int64_t kPixels = kSide * kSide;
  const int64_t at_a_time = 512 * 1024 / (4 * kPixels * (kFilters + kColours) + 1);
  const auto value = [&](int64_t pixel, int64_t tap, int64_t colour) {
    const int64_t row = pixel % kPixels / kSide + tap / 3 - 1, column = pixel % kSide + tap % 3 - 1;
    if (row < 0 || row >= kSide || column < 0 || column >= kSide) return 0.0f;
    const int64_t at = (pixel / kPixels * kSide + row) * kSide + column;
    return x[static_cast<size_t>(at * kColours + colour)];
  };
  std::vector<float> dw;
  for (int64_t filter = 0; filter < kFilters; ++filter) {
    for (int64_t colour = 0; colour < kColours; ++colour) {
      for (int64_t tap = 0; tap < kTaps; ++tap) {
        float all = 0;
        for (int64_t first = 0; first < images; first += at_a_time) {
          float sum = 0;
          const int64_t end = std::min(first + at_a_time, images) * kPixels;
          for (int64_t from = first * kPixels; from < end; from += 256) {
            float chain = 0;
            for (int64_t p = from; p < std::min(from + 256, end); ++p) {
              chain = std::fma(dy[static_cast<size_t>(p * kFilters + filter)],
                               value(p, tap, colour), chain);
            }
            sum += chain;
          }
          all += sum;
        }
        dw.push_back(all);
      }
    }
  }
  return dw;
}

TEST(CutConvolutionTest, WeightGradientsAreTheDefinedSums) {
  for (const int64_t images : {15, 16, 37}) {  // one part, two and three
    Graph graph;
    const auto half = [&graph](const char* name, const Shape& shape) {
      return graph.Add(ops::kCast, {graph.AddLeaf(ops::kInput, {DType::kF32, shape}, name)},
                       {{kDTypeAttr, std::string(Name(DType::kBF16))}});
    };
    const Value dy = half("dy", {images, kSide, kSide, kFilters});
    const Value x = half("x", {images, kSide, kSide, kColours});
    const Value dw = graph.Add(ops::kConv2dBackwardWeight, {dy, x},
                               {{"padding", Shape{1, 1}},
                                {"kernel", Shape{3, 3}},
                                {kDTypeAttr, std::string(Name(DType::kBF16))}});
    graph.AddOutput("dw", dw);
    ASSERT_TRUE(graph.status().ok()) << graph.status();
    // Numbers that bf16 has, whose products and sums no fp32 has.
    std::vector<float> made_dy = Made(images * kSide * kSide * kFilters);
    std::vector<float> made_x = Made(images * kSide * kSide * kColours);
    for (std::vector<float>* values : {&made_dy, &made_x}) {
      for (float& each : *values) each = BFloat16::FromFloat(each).ToFloat();
    }
    EXPECT_EQ(RunGraph(graph, {{"dy", made_dy}, {"x", made_x}}).at("dw"),
              DefinedGradient(made_dy, made_x, images))
        << images << " images";
  }
}

}  // namespace
}  // namespace lockstep::engine
