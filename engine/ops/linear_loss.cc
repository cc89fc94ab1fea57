// SPDX-License-Identifier: Apache-2.0
// A linear layer with the softmax cross-entropy of its results and all gradients: the logits, which
// are the largest values of a model with many words, need not exist as a whole. Attributes as those
// of softmax_cross_entropy. Made by passes/head_fusion.h.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

const TensorType kOne{DType::kF32, {1}};

// Three products, the loss and the sum over rows.
double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  const double logits =
      static_cast<double>(inputs[0].shape[0]) * static_cast<double>(inputs[1].shape[0]);
  return logits * (6.0 * static_cast<double>(inputs[0].shape[1]) + 12 + (outputs.size() == 5));
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("weight", inputs[1]));
  if (inputs[1].shape[1] != inputs[0].shape[1]) {
    return ShapeError("weight", inputs[1], absl::StrCat("f32[*,", inputs[0].shape[1], "]"));
  }
  const int64_t columns = inputs[1].shape[0];
  const TensorType logits{DType::kF32, {inputs[0].shape[0], columns}};
  LS_RETURN_IF_ERROR(CheckLogits({logits, inputs[2]}, attrs));
  if (inputs[3] != kOne) return ShapeError("seed", inputs[3], ToString(kOne));
  std::vector<TensorType> outputs = {kOne, {DType::kF32, {2}}, inputs[0], inputs[1]};
  if (inputs.size() < 5) return outputs;
  const TensorType bias{DType::kF32, {columns}};
  if (inputs[4] != bias) return ShapeError("bias", inputs[4], ToString(bias));
  outputs.push_back(bias);
  return outputs;
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const bool bias : {false, true}) {
    for (const auto& [m, n, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 1, 1}, {31, 33, 5}, {257, 70, 9}, {600, 20, 3}}) {
      OpCase one{{{DType::kF32, {m, k}}, {DType::kF32, {n, k}}, {DType::kI32, {m}}, kOne}, {}, n};
      if (bias) one.inputs.push_back({DType::kF32, {n}});
      if (m == 600) {
        one.attrs = {{"classes", int64_t{17}}, {"label_smoothing", 0.1}};
        one.classes = 17;
      }
      cases.push_back(one);
    }
  }
  return cases;
}

}  // namespace

const OpDef kLinearSoftmaxCrossEntropy = {
    .name = "linear_softmax_cross_entropy",
    .doc =
        "(x [m,k], weight [n,k], labels i32[m], seed [1], bias [n]?) -> loss, count, gradients of "
        "x, "
        "weight and bias; logits are x weight^T + bias; label_smoothing",
    .min_inputs = 4,
    .max_inputs = 5,
    .half = {.rounded = 0b11, .activations = 0b100},
    .accumulates = true,
    .infer = Infer,
    .no_gradient = kFirstOrder,
    .no_cuda = "plans for GPUs keep the nodes apart",
    .flops = Flops,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
