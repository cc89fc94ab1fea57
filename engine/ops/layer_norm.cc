// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last extent: J. Ba, J. Kiros, G. Hinton, "Layer normalization"
// (2016).
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

// The vectors of n values after input `first`, and of m values after `rows`.
absl::Status CheckVectors(const std::vector<TensorType>& inputs, size_t from, size_t to,
                          int64_t extent) {
  const TensorType needed{DType::kF32, {extent}};
  for (size_t i = from; i < to; ++i) {
    if (inputs[i] != needed) return ShapeError("an operand", inputs[i], ToString(needed));
  }
  return absl::OkStatus();
}

absl::Status CheckSame(const std::vector<TensorType>& inputs, size_t i) {
  return inputs[i] == inputs[0] ? absl::OkStatus()
                                : ShapeError("an operand", inputs[i], ToString(inputs[0]));
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0]));
  LS_RETURN_IF_ERROR(CheckVectors(inputs, 1, 3, inputs[0].shape[1]));
  const TensorType rows{DType::kF32, {inputs[0].shape[0]}};
  return std::vector<TensorType>{inputs[0], rows, rows};
}

absl::StatusOr<std::vector<TensorType>> InferInput(const std::vector<TensorType>& inputs,
                                                   const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  LS_RETURN_IF_ERROR(CheckSame(inputs, 1));
  LS_RETURN_IF_ERROR(CheckVectors(inputs, 2, 3, inputs[0].shape[1]));
  LS_RETURN_IF_ERROR(CheckVectors(inputs, 3, 5, inputs[0].shape[0]));
  if (inputs.size() == 6) LS_RETURN_IF_ERROR(CheckSame(inputs, 5));
  return std::vector<TensorType>{inputs[0]};
}

absl::StatusOr<std::vector<TensorType>> InferWeight(const std::vector<TensorType>& inputs,
                                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  LS_RETURN_IF_ERROR(CheckSame(inputs, 1));
  LS_RETURN_IF_ERROR(CheckVectors(inputs, 2, 4, inputs[0].shape[0]));
  const TensorType columns{DType::kF32, {inputs[0].shape[1]}};
  return std::vector<TensorType>{columns, columns};
}

void Gradient(GradientContext& context) {
  Graph* graph = context.graph;
  const Value dy = context.dy(), x = context.input(0);
  const Value mean = context.output(1), rstd = context.output(2);
  if (context.wants(1) || context.wants(2)) {
    const Value made = graph->Add(ops::kLayerNormBackwardWeight, {dy, x, mean, rstd});
    context.Set(1, {made.node, 0});
    context.Set(2, {made.node, 1});
  }
  if (context.wants(0)) {
    context.Set(0, graph->Add(ops::kLayerNormBackwardInput, {dy, x, context.input(1), mean, rstd}));
  }
}

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return 8.0 * static_cast<double>(inputs[0].elements());
}

std::vector<std::pair<int64_t, int64_t>> Sizes() {
  return {{1, 1}, {3, 7}, {31, 33}, {33, 31}, {5, 200}, {2, 1096}};
}
std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const auto& [m, n] : Sizes()) {
    cases.push_back({{F32({m, n}), F32({n}), F32({n})}, {{"eps", m == 3 ? 0.1 : 1e-5}}});
  }
  return cases;
}
std::vector<OpCase> InputCases() {
  std::vector<OpCase> cases;
  for (const auto& [m, n] : Sizes()) {
    cases.push_back({{F32({m, n}), F32({m, n}), F32({n}), F32({m}), F32({m})}, {}});
  }
  cases[2].inputs.push_back(F32({31, 33}));
  return cases;
}
std::vector<OpCase> WeightCases() {
  std::vector<OpCase> cases;
  for (const auto& [m, n] : Sizes()) {
    cases.push_back({{F32({m, n}), F32({m, n}), F32({m}), F32({m})}, {}});
  }
  return cases;
}

}  // namespace

const OpDef kLayerNorm = {
    .name = "layer_norm",
    .doc = "(x [m,n], gamma [n], beta [n]) -> (x - mean) rstd gamma + beta, mean [m], rstd [m]",
    .min_inputs = 3,
    .max_inputs = 3,
    .half = {.activations = 0b1, .cut_inputs = 0b001, .cut_outputs = 0b111},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kLayerNormBackwardInput = {
    .name = "layer_norm_backward_input",
    .doc = "(dy [m,n], x, gamma, mean, rstd, residual [m,n]?) -> dx + residual",
    .min_inputs = 5,
    .max_inputs = 6,
    .half = {.activations = 0b1, .cut_inputs = 0b111011, .cut_outputs = 0b1},
    .in_place = {{0, 0}, {5, 0}},
    .infer = InferInput,
    .no_gradient = kFirstOrder,
    .flops = Flops,
    .cases = InputCases,
};

const OpDef kLayerNormBackwardWeight = {
    .name = "layer_norm_backward_weight",
    .doc = "(dy [m,n], x, mean, rstd) -> dgamma [n], dbeta [n]",
    .min_inputs = 4,
    .max_inputs = 4,
    .half = {.cut_inputs = 0b1111, .sums = 0b11},
    .accumulates = true,
    .infer = InferWeight,
    .no_gradient = kFirstOrder,
    .flops = Flops,
    .cases = WeightCases,
};

}  // namespace lockstep::engine::ops
