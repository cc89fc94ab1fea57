// SPDX-License-Identifier: Apache-2.0
// Softmax with cross-entropy against integer labels. A negative label is ignored. The loss is a sum
// over rows; `count` is how many rows count, as high and low parts (counts.h).
//
// Attributes: classes (columns from there on are padding, which no probability and no gradient
// reaches; 0: none is) and label_smoothing, as torch defines it: the target is (1 - s) at the label
// plus s / classes everywhere. bias=1 on a CPU: the gradient of a bias that was added to each row
// of the logits is one more result.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

const TensorType kLoss{DType::kF32, {1}};
const TensorType kCount{DType::kF32, {2}};

// About: subtract, exp, add; the gradient two more.
double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 12.0 * static_cast<double>(inputs[0].elements());
}

absl::Status CheckSeed(const std::vector<TensorType>& inputs) {
  return inputs[2] == kLoss ? absl::OkStatus() : ShapeError("seed", inputs[2], ToString(kLoss));
}

absl::Status CheckSmoothing(const Attrs& attrs) {
  const double smoothing = attrs.Double("label_smoothing");
  if (smoothing >= 0 && smoothing <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("label_smoothing is ", smoothing, ": it must be from 0 to 1"));
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckLogits(inputs, attrs));
  LS_RETURN_IF_ERROR(CheckSmoothing(attrs));
  return std::vector<TensorType>{kLoss, kCount};
}

absl::StatusOr<std::vector<TensorType>> InferBackward(const std::vector<TensorType>& inputs,
                                                      const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckLogits(inputs, attrs));
  LS_RETURN_IF_ERROR(CheckSeed(inputs));
  LS_RETURN_IF_ERROR(CheckSmoothing(attrs));
  return std::vector<TensorType>{inputs[0]};
}

absl::StatusOr<std::vector<TensorType>> InferBoth(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckLogits(inputs, attrs));
  LS_RETURN_IF_ERROR(CheckSeed(inputs));
  LS_RETURN_IF_ERROR(CheckSmoothing(attrs));
  std::vector<TensorType> outputs = {kLoss, kCount, inputs[0]};
  if (attrs.Int("bias") != 0) outputs.push_back({DType::kF32, {inputs[0].shape[1]}});
  return outputs;
}

void Gradient(GradientContext& context) {
  if (!context.output_gradients[0]) return;
  context.Set(0, context.graph->Add(ops::kSoftmaxCrossEntropyBackward,
                                    {context.input(0), context.input(1), context.dy()},
                                    context.node.attrs));
}

std::vector<OpCase> MakeCases(bool seed) {
  std::vector<OpCase> cases;
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 10}, {31, 33}, {64, 10}, {33, 31}, {3, 1031}, {5, 2064}}) {
    cases.push_back({{{DType::kF32, {m, n}}, {DType::kI32, {m}}}, {}, n});
    if (m == 31) cases.back().attrs.Set("label_smoothing", 0.1);
    if (m == 33) {
      cases.back().attrs = {{"classes", int64_t{20}}, {"label_smoothing", 0.3}};
      cases.back().classes = 20;
    }
    if (m == 5) {
      cases.back().attrs = {{"classes", int64_t{2061}}};
      cases.back().classes = 2061;
    }
    if (seed) cases.back().inputs.push_back(kLoss);
    cases.push_back(cases.back());
    cases.back().attrs.Set("label_smoothing", 0.1);
  }
  return cases;
}

std::vector<OpCase> Cases() { return MakeCases(false); }
std::vector<OpCase> SeededCases() { return MakeCases(true); }

}  // namespace

absl::Status CheckLogits(const std::vector<TensorType>& inputs, const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("logits", inputs[0]));
  const int64_t classes = attrs.Int("classes");
  if (classes < 0 || classes > inputs[0].shape[1]) {
    return ShapeError("logits", inputs[0], absl::StrCat("f32[*,", classes, " or more]"));
  }
  const double smoothing = attrs.Double("label_smoothing");
  if (!(smoothing >= 0 && smoothing < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("label_smoothing is ", smoothing, ": it must be in [0, 1)"));
  }
  const TensorType labels{DType::kI32, {inputs[0].shape[0]}};
  return inputs[1] == labels ? absl::OkStatus() : ShapeError("labels", inputs[1], ToString(labels));
}

const OpDef kSoftmaxCrossEntropy = {
    .name = "softmax_cross_entropy",
    .doc =
        "(logits [m,n], labels i32[m]) -> sum of -log softmax(logits)[label], count of labels; "
        "label_smoothing",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.cut_inputs = 0b11, .sums = 0b11},
    .accumulates = true,
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kSoftmaxCrossEntropyBackward = {
    .name = "softmax_cross_entropy_backward",
    .doc = "(logits, labels, seed [1]) -> seed * (softmax(logits) - target); label_smoothing",
    .min_inputs = 3,
    .max_inputs = 3,
    .half = {.activations = 0b1, .cut_inputs = 0b011, .cut_outputs = 0b1},
    .in_place = {{0, 0}},
    .infer = InferBackward,
    .no_gradient = kFirstOrder,
    .flops = Flops,
    .cases = SeededCases,
};

const OpDef kSoftmaxCrossEntropyWithGradient = {
    .name = "softmax_cross_entropy_with_gradient",
    .doc =
        "(logits, labels, seed [1]) -> loss, count, gradient of the logits, with bias=1 its sum "
        "over "
        "rows; one pass; label_smoothing",
    .min_inputs = 3,
    .max_inputs = 3,
    .half = {.activations = 0b100, .cut_inputs = 0b011, .cut_outputs = 0b100, .sums = 0b1011},
    .accumulates = true,
    .in_place = {{0, 2}},
    .infer = InferBoth,
    .no_gradient = kFirstOrder,
    .flops = Flops,
    .cases = SeededCases,
};

}  // namespace lockstep::engine::ops
