// SPDX-License-Identifier: Apache-2.0
// channels_last and channels_first: between the data's order [n, c, h, w] and the kernels' order
// [n, h, w, c]. Each is the other's gradient.
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<std::vector<TensorType>> InferLast(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0], 4));
  const Shape& x = inputs[0].shape;
  return std::vector<TensorType>{{DType::kF32, {x[0], x[2], x[3], x[1]}}};
}

absl::StatusOr<std::vector<TensorType>> InferFirst(const std::vector<TensorType>& inputs,
                                                   const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0], 4));
  const Shape& x = inputs[0].shape;
  return std::vector<TensorType>{{DType::kF32, {x[0], x[3], x[1], x[2]}}};
}

void LastGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kChannelsFirst, {context.dy()}));
}
void FirstGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kChannelsLast, {context.dy()}));
}

std::vector<OpCase> Cases() {
  return {{{{DType::kF32, {1, 1, 1, 1}}}, {}},
          {{{DType::kF32, {2, 3, 5, 7}}}, {}},
          {{{DType::kF32, {3, 33, 4, 31}}}, {}}};
}

}  // namespace

const OpDef kChannelsLast = {
    .name = "channels_last",
    .doc = "(x [n,c,h,w]) -> [n,h,w,c]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = InferLast,
    .gradient = LastGradient,
    .cases = Cases,
};

const OpDef kChannelsFirst = {
    .name = "channels_first",
    .doc = "(x [n,h,w,c]) -> [n,c,h,w]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = InferFirst,
    .gradient = FirstGradient,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
