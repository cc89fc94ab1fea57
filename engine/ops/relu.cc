// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

double OneEach(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return static_cast<double>(outputs[0].elements());
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  for (const TensorType& input : inputs) {
    if (input.dtype != DType::kF32 || input != inputs[0]) {
      return ShapeError("an operand", input, ToString(TensorType{DType::kF32, inputs[0].shape}));
    }
  }
  return std::vector<TensorType>{inputs[0]};
}

// By the output: the input need not be kept.
void Gradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kReluBackward, {context.dy(), context.output()}));
}

std::vector<OpCase> Cases() {
  return {{{{DType::kF32, {1, 1}}}, {}},
          {{{DType::kF32, {31, 33}}}, {}},
          {{{DType::kF32, {2, 1031}}}, {}}};
}
std::vector<OpCase> BackwardCases() {
  return {{{{DType::kF32, {1, 1}}, {DType::kF32, {1, 1}}}, {}},
          {{{DType::kF32, {31, 33}}, {DType::kF32, {31, 33}}}, {}}};
}

}  // namespace

const OpDef kRelu = {
    .name = "relu",
    .doc = "(x) -> max(x, 0)",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .elementwise = true},
    .in_place = {{0, 0}},
    .infer = Infer,
    .gradient = Gradient,
    .flops = OneEach,
    .cases = Cases,
};

const OpDef kReluBackward = {
    .name = "relu_backward",
    .doc = "(dy, y) -> dy where y > 0, else 0",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.follows = 0b1, .activations = 0b1, .elementwise = true},
    .in_place = {{0, 0}, {1, 0}},
    .infer = Infer,
    .no_gradient = kFirstOrder,
    .flops = OneEach,
    .cases = BackwardCases,
};

}  // namespace lockstep::engine::ops
