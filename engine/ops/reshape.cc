// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  TensorType y{inputs[0].dtype, attrs.Extents("shape")};
  if (y.elements() != inputs[0].elements()) {
    return ShapeError("the input", inputs[0], ToString(y) + " of as many elements");
  }
  return std::vector<TensorType>{y};
}

void Gradient(GradientContext& context) {
  Graph* graph = context.graph;
  context.Set(0, graph->Add(ops::kReshape, {context.dy()},
                            {{"shape", graph->type(context.input(0)).shape}}));
}

std::vector<OpCase> Cases() {
  return {{{{DType::kF32, {31, 2, 3}}}, {{"shape", Shape{31, 6}}}},
          {{{DType::kF32, {33}}}, {{"shape", Shape{1, 33}}}}};
}

}  // namespace

const OpDef kReshape = {
    .name = "reshape",
    .doc = "(x) -> x with the extents `shape`; a view",
    .min_inputs = 1,
    .max_inputs = 1,
    .view = true,
    .infers_types = true,
    .infer = Infer,
    .gradient = Gradient,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
