// SPDX-License-Identifier: Apache-2.0
// Every stride-th row: the first token of each sequence.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0]));
  const int64_t stride = attrs.Int("stride");
  if (stride < 1 || inputs[0].shape[0] % stride != 0) {
    return ShapeError("x", inputs[0], absl::StrCat("a multiple of ", stride, " rows"));
  }
  return std::vector<TensorType>{{DType::kF32, {inputs[0].shape[0] / stride, inputs[0].shape[1]}}};
}

absl::StatusOr<std::vector<TensorType>> InferBackward(const std::vector<TensorType>& inputs,
                                                      const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  return std::vector<TensorType>{
      {DType::kF32, {inputs[0].shape[0] * attrs.Int("stride"), inputs[0].shape[1]}}};
}

void Gradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kTakeRowsBackward, {context.dy()}, context.node.attrs));
}

std::vector<OpCase> Cases() {
  return {{{{DType::kF32, {1, 1}}}, {{"stride", int64_t{1}}}},
          {{{DType::kF32, {33, 31}}}, {{"stride", int64_t{11}}}}};
}
std::vector<OpCase> BackwardCases() {
  return {{{{DType::kF32, {1, 1}}}, {{"stride", int64_t{1}}}},
          {{{DType::kF32, {3, 31}}}, {{"stride", int64_t{11}}}}};
}

}  // namespace

const OpDef kTakeRows = {
    .name = "take_rows",
    .doc = "(x [m,n]) -> rows 0, stride, 2 stride, ... [m/stride,n]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1},
    .infer = Infer,
    .gradient = Gradient,
    .cases = Cases,
};

const OpDef kTakeRowsBackward = {
    .name = "take_rows_backward",
    .doc = "(dy [m,n]) -> dy's rows where they were taken, 0 elsewhere [m*stride,n]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1},
    .infer = InferBackward,
    .no_gradient = kFirstOrder,
    .cases = BackwardCases,
};

}  // namespace lockstep::engine::ops
