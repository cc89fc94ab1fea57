// SPDX-License-Identifier: Apache-2.0
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return 10.0 * static_cast<double>(inputs[0].elements());
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0]));
  if (inputs.size() == 2 && inputs[1] != inputs[0]) {
    return ShapeError("y", inputs[1], ToString(inputs[0]));
  }
  return std::vector<TensorType>{inputs[0]};
}

void Gradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kSoftmaxBackward, {context.dy(), context.output()}));
}

std::vector<OpCase> MakeCases(size_t operands) {
  std::vector<OpCase> cases;
  for (const Shape& shape : {Shape{1, 1}, Shape{31, 33}, Shape{3, 1031}, Shape{5, 200},
                             Shape{2, 1096}, Shape{1, 6200}, Shape{1, 12300}}) {
    cases.push_back({std::vector<TensorType>(operands, {DType::kF32, shape}), {}});
  }
  return cases;
}
std::vector<OpCase> Cases() { return MakeCases(1); }
std::vector<OpCase> BackwardCases() { return MakeCases(2); }

}  // namespace

const OpDef kSoftmax = {
    .name = "softmax",
    .doc = "(x [m,n]) -> exp(x) / sum of exp(x), by row",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .in_place = {{0, 0}},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kSoftmaxBackward = {
    .name = "softmax_backward",
    .doc = "(dy [m,n], y) -> y (dy - sum of dy y), by row",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.activations = 0b1, .cut_inputs = 0b11, .cut_outputs = 0b1},
    .in_place = {{0, 0}, {1, 0}},
    .infer = Infer,
    .no_gradient = kFirstOrder,
    .flops = Flops,
    .cases = BackwardCases,
};

}  // namespace lockstep::engine::ops
