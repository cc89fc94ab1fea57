// SPDX-License-Identifier: Apache-2.0
// Causal attention of new positions over those before them, whose keys and values are kept: what
// ops/attention.cc gives for those rows of a sequence, without computing the rows before again.
// Each row's key and value become the kept ones of its position, of rows with one position the last
// one's; then each attends to all up to its own. A position outside them gives 0 and changes
// nothing.
//
// Attribute: heads.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("qkv", inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("kept", inputs[1], 3));
  const int64_t heads = attrs.Int("heads"), columns = inputs[0].shape[1];
  const int64_t rows = inputs[0].shape[0];
  if (heads < 1 || columns % (3 * heads) != 0) {
    return ShapeError("qkv", inputs[0], absl::StrCat("f32[*,a multiple of ", 3 * heads, "]"));
  }
  if (inputs[1].shape[0] != 2 || inputs[1].shape[2] != columns / 3) {
    return ShapeError("kept", inputs[1], absl::StrCat("f32[2,*,", columns / 3, "]"));
  }
  if (inputs[2] != TensorType{DType::kI32, {rows}}) {
    return ShapeError("position", inputs[2], absl::StrCat("i32[", rows, "]"));
  }
  return std::vector<TensorType>{{DType::kF32, {rows, columns / 3}}, inputs[1]};
}

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return 2.0 * static_cast<double>(inputs[0].shape[0] * inputs[1].elements());
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  const auto add = [&](int64_t heads, int64_t width, int64_t context, int64_t rows = 1) {
    // Positions are made from -1 up to the last one, by the case's place in the list.
    for (int64_t classes = 1; classes <= context; classes = classes * 3 + 1) {
      cases.push_back({{{DType::kF32, {rows, 3 * width}},
                        {DType::kF32, {2, context, width}},
                        {DType::kI32, {rows}}},
                       {{"heads", heads}},
                       classes});
    }
  };
  add(1, 1, 1);
  add(3, 33, 31);
  add(2, 64, 65);
  add(3, 33, 31, 7);  // some have one position
  return cases;
}

}  // namespace

const OpDef kAttentionStep = {
    .name = "attention_step",
    .doc =
        "(qkv [m,3c], kept keys and values [2,t,c], position i32[m]) -> attention over rows 0 to "
        "each position [m,c], kept with the new rows [2,t,c]",
    .min_inputs = 3,
    .max_inputs = 3,
    .in_place = {{1, 1}},
    .infer = Infer,
    .no_gradient = "part of generation, which is not differentiated",
    .flops = Flops,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
