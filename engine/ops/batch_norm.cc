// SPDX-License-Identifier: Apache-2.0
// Batch normalisation (Ioffe and Szegedy, 2015) of [..., c] over all but the last axis. Training
// uses the statistics of the shard's micro-batch and puts them out; evaluation uses the running
// ones.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

// About: two sums, then a multiplication and an addition.
double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 6.0 * static_cast<double>(inputs[0].elements());
}
double BackwardFlops(const std::vector<TensorType>& inputs,
                     const std::vector<TensorType>& outputs) {
  return 10.0 * static_cast<double>(inputs[0].elements());
}

absl::Status CheckImage(const std::string& what, const TensorType& type) {
  if (type.dtype == DType::kF32 && type.shape.size() >= 2) return absl::OkStatus();
  return ShapeError(what, type, "f32 with at least 2 extents");
}

// inputs[first, last) are [c].
absl::Status CheckChannels(const std::vector<TensorType>& inputs, size_t first, size_t last,
                           int64_t channels) {
  const TensorType needed{DType::kF32, {channels}};
  for (size_t i = first; i < last; ++i) {
    if (inputs[i] != needed) {
      return ShapeError(absl::StrCat("operand ", i), inputs[i], ToString(needed));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckActivation(const Attrs& attrs) {
  const std::string activation = attrs.String("activation", "none");
  if (activation == "none" || activation == "relu") return absl::OkStatus();
  return absl::InvalidArgumentError("activation " + activation + " is not none or relu");
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckImage("x", inputs[0]));
  LS_RETURN_IF_ERROR(CheckActivation(attrs));
  const int64_t channels = inputs[0].shape.back();
  LS_RETURN_IF_ERROR(CheckChannels(inputs, 1, 3, channels));
  if (inputs.size() == 4 && inputs[3] != inputs[0]) {
    return ShapeError("residual", inputs[3], ToString(inputs[0]));
  }
  if (inputs[0].elements() == channels) {
    return absl::InvalidArgumentError(
        "batch_norm needs more than one value per channel in a micro-batch");
  }
  const TensorType each{DType::kF32, {channels}};
  return std::vector<TensorType>{inputs[0], each, each, each};
}

absl::StatusOr<std::vector<TensorType>> InferBackward(const std::vector<TensorType>& inputs,
                                                      const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckImage("dy", inputs[0]));
  if (inputs[1] != inputs[0]) return ShapeError("x", inputs[1], ToString(inputs[0]));
  LS_RETURN_IF_ERROR(CheckChannels(inputs, 2, 5, inputs[0].shape.back()));
  if (inputs.size() == 6 && inputs[5] != inputs[0]) {
    return ShapeError("mask", inputs[5], ToString(inputs[0]));
  }
  return std::vector<TensorType>{inputs[0], inputs[2], inputs[2]};
}

absl::StatusOr<std::vector<TensorType>> InferInference(const std::vector<TensorType>& inputs,
                                                       const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckImage("x", inputs[0]));
  LS_RETURN_IF_ERROR(CheckActivation(attrs));
  LS_RETURN_IF_ERROR(CheckChannels(inputs, 1, 5, inputs[0].shape.back()));
  return std::vector<TensorType>{inputs[0]};
}

absl::StatusOr<std::vector<TensorType>> InferFold(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("weight", inputs[0], 4));
  LS_RETURN_IF_ERROR(CheckChannels(inputs, 1, inputs.size(), inputs[0].shape[0]));
  return std::vector<TensorType>{inputs[0], inputs[1]};
}

void Gradient(GradientContext& context) {
  if (!context.output_gradients[0]) return;
  Graph* graph = context.graph;
  Value dy = context.dy();
  if (context.node.attrs.String("activation") == "relu") {
    dy = graph->Add(ops::kReluBackward, {dy, context.output()});
  }
  const Value made = graph->Add(ops::kBatchNormBackward, {dy, context.input(0), context.input(1),
                                                          context.output(1), context.output(2)});
  context.Set(0, made);
  context.Set(1, {made.node, 1});
  context.Set(2, {made.node, 2});
  if (context.node.inputs.size() == 4) context.Set(3, dy);
}

std::vector<Shape> Images() {
  return {{3, 1}, {2, 5, 7, 3}, {31, 33}, {9, 11, 7, 16}, {2, 17, 35}};
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const Shape& x : Images()) {
    const TensorType each = F32({x.back()});
    cases.push_back({{F32(x), each, each}, {{"eps", 1e-3}}});
    if (cases.size() % 2 == 0) cases.back().inputs.push_back(F32(x));
    if (cases.size() % 3 != 1) cases.back().attrs.Set("activation", std::string("relu"));
  }
  return cases;
}

std::vector<OpCase> BackwardCases() {
  std::vector<OpCase> cases;
  for (const Shape& x : Images()) {
    const TensorType each = F32({x.back()});
    cases.push_back({{F32(x), F32(x), each, each, each}, {}});
    if (cases.size() % 2 == 0) cases.back().inputs.push_back(F32(x));
  }
  return cases;
}

std::vector<OpCase> InferenceCases() {
  std::vector<OpCase> cases;
  for (const Shape& x : Images()) {
    const TensorType each = F32({x.back()});
    // The suite's numbers are above -1.01: a variance of eps + x stays above 0.
    cases.push_back({{F32(x), each, each, each, each}, {{"eps", 1.5}}});
    if (cases.size() % 2 == 0) cases.back().attrs.Set("activation", std::string("relu"));
  }
  return cases;
}

std::vector<OpCase> FoldCases() {
  const auto make = [](const Shape& weight, bool bias) {
    OpCase test{{F32(weight)}, {{"eps", 1.5}}};
    for (int i = 0; i < (bias ? 5 : 4); ++i) test.inputs.push_back(F32({weight[0]}));
    return test;
  };
  return {make({1, 1, 1, 1}, false), make({31, 3, 3, 3}, true), make({33, 17, 1, 1}, false)};
}

}  // namespace

const OpDef kBatchNorm = {
    .name = "batch_norm",
    .doc = "(x [...,c], weight [c], bias [c], residual?) -> y, mean, 1 / deviation, variance",
    .min_inputs = 3,
    .max_inputs = 4,
    .half = {.follows = 0b1001, .activations = 0b1},
    .in_place = {{3, 0}},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kBatchNormBackward = {
    .name = "batch_norm_backward",
    .doc = "(dy, x, weight, mean, 1 / deviation, mask?) -> gradients of x, weight, bias",
    .min_inputs = 5,
    .max_inputs = 6,
    .half = {.follows = 0b11, .activations = 0b1},
    .accumulates = true,
    .in_place = {{0, 0}, {1, 0}},
    .infer = InferBackward,
    .no_gradient = kFirstOrder,
    .flops = BackwardFlops,
    .cases = BackwardCases,
};

const OpDef kBatchNormInference = {
    .name = "batch_norm_inference",
    .doc = "(x [...,c], weight, bias, running mean, running variance [c]) -> y",
    .min_inputs = 5,
    .max_inputs = 5,
    .half = {.follows = 0b1, .activations = 0b1},
    .in_place = {{0, 0}},
    .infer = InferInference,
    .no_gradient = "part of an evaluation: training normalises by the batch's statistics",
    .flops = Flops,
    .cases = InferenceCases,
};

const OpDef kFoldBatchNorm = {
    .name = "fold_batch_norm",
    .doc = "(filters [o,...], weight, bias, mean, variance [o], filter bias?) -> filters, bias",
    .min_inputs = 5,
    .max_inputs = 6,
    .half = {.activations = 0b1},
    .infer = InferFold,
    .no_gradient = "part of an evaluation: training normalises by the batch's statistics",
    .cases = FoldCases,
};

}  // namespace lockstep::engine::ops
