// SPDX-License-Identifier: Apache-2.0
// A factor of a matrix product as FP8 has it (common/float8.h), stored in bf16, which holds every
// such value. The scale is made of the operand itself, so nothing is remembered from step to step.
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  if (inputs[0].dtype != DType::kF32 && inputs[0].dtype != DType::kBF16) {
    return ShapeError("x", inputs[0], "f32 or bf16");
  }
  const std::string format = attrs.String("format");
  if (format != "e4m3" && format != "e5m2") {
    return absl::InvalidArgumentError("format " + format + " is not e4m3 or e5m2");
  }
  return std::vector<TensorType>{{DType::kBF16, inputs[0].shape}};
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType from : {DType::kF32, DType::kBF16}) {
    for (const char* format : {"e4m3", "e5m2"}) {
      for (const Shape& shape : {Shape{1}, Shape{31}, Shape{33, 31}, Shape{70, 1001}}) {
        cases.push_back({{{from, shape}}, {{"format", std::string(format)}}});
      }
    }
  }
  return cases;
}

}  // namespace

Float8Format Float8FormatOf(const Attrs& attrs) {
  return attrs.String("format") == "e5m2" ? kE5M2 : kE4M3;
}

const OpDef kQuantizeFp8 = {
    .name = "quantize_fp8",
    .doc = "(x) -> x rounded to FP8's `format` (e4m3, e5m2) by a scale of the whole, in bf16",
    .min_inputs = 1,
    .max_inputs = 1,
    .infers_types = true,
    .half = {.activations = 0b1},
    .in_place = {{0, 0}},
    .infer = Infer,
    .no_gradient = "put in after differentiation: gradients are rounded by themselves",
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
