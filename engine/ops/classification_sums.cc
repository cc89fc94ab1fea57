// SPDX-License-Identifier: Apache-2.0
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 8.0 * static_cast<double>(inputs[0].elements());
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckLogits(inputs, attrs));
  return std::vector<TensorType>{{DType::kF64, {4}}};
}

std::vector<OpCase> Cases() {
  return {{{{DType::kF32, {1, 1}}, {DType::kI32, {1}}}, {}, 1},
          {{{DType::kF32, {7, 40}}, {DType::kI32, {7}}}, {{"classes", int64_t{37}}}, 37},
          {{{DType::kF32, {31, 33}}, {DType::kI32, {31}}}, {}, 33},
          {{{DType::kF32, {33, 10}}, {DType::kI32, {33}}}, {{"classes", int64_t{7}}}, 7}};
}

}  // namespace

const OpDef kClassificationSums = {
    .name = "classification_sums",
    .doc =
        "(logits [m,n], labels i32[m]) -> f64[4]: loss, correct, counted, correct among the "
        "first five, over the valid rows",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.cut_inputs = 0b11, .sums = 0b1},
    .infer = Infer,
    .no_gradient = "evaluation only",
    .flops = Flops,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
