// SPDX-License-Identifier: Apache-2.0
// Small convolutions of each kind, and graphs of one node that does one of them or a gradient.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_ONE_CONVOLUTION_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_ONE_CONVOLUTION_H_

#include <ostream>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "tests/unit/engine/one_node.h"

namespace lockstep::engine {

enum Direction { kForward = 0, kImages = 1, kFilters = 2 };

struct Convolution {
  const char* name;
  Shape x, weight;
  Attrs attrs;
  DType type = DType::kF32;
  size_t extra = 0;  // 1: bias; 2: and residual; of the images' gradient 1: mask
};

inline std::ostream& operator<<(std::ostream& out, const Convolution& c) { return out << c.name; }

inline std::vector<Convolution> Convolutions() {
  const auto pair = [](int64_t a, int64_t b) { return Shape{a, b}; };
  return {
      {"plain", {2, 5, 7, 3}, {4, 3, 3, 3}, {{"padding", pair(1, 1)}}},
      {"ones", {2, 5, 4, 11}, {12, 11, 1, 1}, {}},
      {"strides", {3, 7, 6, 5}, {9, 5, 3, 3}, {{"padding", pair(1, 2)}, {"stride", pair(2, 3)}}},
      {"groups", {1, 6, 5, 4}, {6, 2, 3, 2}, {{"groups", int64_t{2}}, {"padding", pair(0, 1)}}},
      {"depthwise", {2, 6, 5, 6}, {6, 1, 3, 3}, {{"groups", int64_t{6}}, {"padding", pair(1, 1)}}},
      {"dilations",
       {1, 9, 8, 3},
       {5, 3, 3, 3},
       {{"dilation", pair(2, 1)}, {"padding", pair(2, 0)}}},
      {"bf16", {2, 5, 7, 3}, {4, 3, 3, 3}, {{"padding", pair(1, 1)}}, DType::kBF16},
      {"f16_groups", {1, 6, 5, 4}, {6, 2, 3, 2}, {{"groups", int64_t{2}}}, DType::kF16},
      {"bf16_bias_relu",
       {2, 5, 4, 3},
       {4, 3, 3, 3},
       {{"activation", std::string("relu")}, {"stride", pair(2, 1)}, {"padding", pair(1, 0)}},
       DType::kBF16,
       1},
      {"f16_residual", {2, 5, 4, 3}, {4, 3, 3, 3}, {{"dilation", pair(2, 1)}}, DType::kF16, 2},
      {"bias_relu",
       {2, 5, 4, 3},
       {4, 3, 3, 3},
       {{"activation", std::string("relu")}},
       DType::kF32,
       1},
      {"residual", {2, 5, 4, 3}, {4, 3, 3, 3}, {}, DType::kF32, 2},
  };
}

inline OneNode NodeOf(const Convolution& c, Direction direction) {
  const TensorType x{c.type, c.x}, weight{c.type, c.weight};
  Attrs attrs = c.attrs;
  if (IsHalf(c.type)) attrs.Set(kDTypeAttr, std::string(Name(c.type)));
  Graph shapes;
  const Value y = shapes.Add(ops::kConv2d,
                             {shapes.AddLeaf(ops::kInput, {DType::kF32, c.x}, "x"),
                              shapes.AddLeaf(ops::kInput, {DType::kF32, c.weight}, "w")},
                             c.attrs);
  const TensorType dy{c.type, shapes.type(y).shape};
  if (direction == kForward) {
    std::vector<TensorType> inputs = {x, weight};
    if (c.extra > 0) inputs.push_back({DType::kF32, {c.weight[0]}});
    if (c.extra > 1) inputs.push_back(dy);
    return OneNode(ops::kConv2d, inputs, attrs);
  }
  if (direction == kImages) {
    attrs.Set("extents", Shape{c.x[1], c.x[2]});
    std::vector<TensorType> inputs = {dy, weight};
    if (c.extra > 0) inputs.push_back(x);
    return OneNode(ops::kConv2dBackwardInput, inputs, attrs);
  }
  attrs.Set("kernel", Shape{c.weight[2], c.weight[3]});
  return OneNode(ops::kConv2dBackwardWeight, {dy, x}, attrs);
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_ONE_CONVOLUTION_H_
