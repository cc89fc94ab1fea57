// SPDX-License-Identifier: Apache-2.0
// Convolutions of bf16 images, which are cut into a few images at a time.
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace lockstep::engine
