// SPDX-License-Identifier: Apache-2.0
// add, scale and deposit: the small arithmetic of passes; and what ops of single elements share.
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {

absl::StatusOr<std::vector<TensorType>> InferSame(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs) {
  for (const TensorType& input : inputs) {
    if (input.dtype != DType::kF32 || input != inputs[0]) {
      return ShapeError("an operand", input, ToString(F32(inputs[0].shape)));
    }
  }
  return std::vector<TensorType>{inputs[0]};
}

double InputEach(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return static_cast<double>(inputs[0].elements());
}
double OutputEach(const std::vector<TensorType>&, const std::vector<TensorType>& outputs) {
  return static_cast<double>(outputs[0].elements());
}

namespace {

void AddGradient(GradientContext& context) {
  for (int i = 0; i < 2; ++i) {
    if (context.wants(i)) context.Set(i, context.dy());
  }
}

void ScaleGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kScale, {context.dy()},
                                    {{"factor", context.node.attrs.Double("factor", 1)}}));
}

std::vector<OpCase> AddCases() {
  return {{{{DType::kF32, {1}}, {DType::kF32, {1}}}, {}},
          {{{DType::kF32, {31, 33}}, {DType::kF32, {31, 33}}}, {}}};
}
std::vector<OpCase> ScaleCases() {
  return {{{{DType::kF32, {33}}}, {{"factor", 0.25}}},
          {{{DType::kF32, {31, 3}}}, {{"factor", -3.0}}}};
}
std::vector<OpCase> DepositCases() {
  return {{{{DType::kF32, {1}}}, {}}, {{{DType::kF32, {31, 33}}}, {}}};
}

}  // namespace

const OpDef kAdd = {
    .name = "add",
    .doc = "(a, b) -> a + b",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.follows = 0b11, .activations = 0b1, .elementwise = true},
    .in_place = {{0, 0}, {1, 0}},
    .infer = InferSame,
    .gradient = AddGradient,
    .flops = OutputEach,
    .cases = AddCases,
};

const OpDef kScale = {
    .name = "scale",
    .doc = "(x) -> factor * x",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .elementwise = true},
    .in_place = {{0, 0}},
    .infer = InferSame,
    .gradient = ScaleGradient,
    .flops = OutputEach,
    .cases = ScaleCases,
};

// Brings a gradient into the gradient vector when its own op cannot be born there.
const OpDef kDeposit = {
    .name = "deposit",
    .doc = "(x) -> x, copied or added",
    .min_inputs = 1,
    .max_inputs = 1,
    .accumulates = true,
    .infer = InferSame,
    .no_gradient = kFirstOrder,
    .cases = DepositCases,
};

}  // namespace lockstep::engine::ops
