// SPDX-License-Identifier: Apache-2.0
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  if (inputs[0].dtype != DType::kF32 && !IsHalf(inputs[0].dtype)) {
    return ShapeError("x", inputs[0], "f32, bf16 or f16");
  }
  return std::vector<TensorType>{
      {DTypeOf(attrs.String(kDTypeAttr, Name(DType::kF32))), inputs[0].shape}};
}

void Gradient(GradientContext& context) {
  const std::string type = Name(context.graph->type(context.input(0)).dtype);
  context.Set(0, context.graph->Add(ops::kCast, {context.dy()}, {{kDTypeAttr, type}}));
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      cases.push_back({{{from, {31, 67}}}, {{kDTypeAttr, std::string(Name(to))}}});
    }
  }
  cases.push_back({{{DType::kF32, {1}}}, {{kDTypeAttr, std::string("bf16")}}});
  return cases;
}

}  // namespace

const OpDef kCast = {
    .name = "cast",
    .doc = "(x) -> x as `dtype`, rounded to nearest even",
    .min_inputs = 1,
    .max_inputs = 1,
    .infers_types = true,
    .infer = Infer,
    .gradient = Gradient,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
