// SPDX-License-Identifier: Apache-2.0
// Dropout by addressed randomness. The mask is a function of (key, step, shard, element), where
// `element` counts through the shard's micro-batches; it is never stored. The gradient is the same
// op on dy. Element i has a 16-bit number, as RowKernels::random_halves gives them, and is dropped
// when that is below rate * 2^16, rounded; what is kept is scaled by that rounded rate.
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return 2.0 * static_cast<double>(inputs[0].elements());
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  if (inputs[0].dtype != DType::kF32) return ShapeError("x", inputs[0], "f32");
  LS_RETURN_IF_ERROR(CheckAddress(inputs[1]));
  LS_RETURN_IF_ERROR(CheckRate(attrs));
  if (inputs.size() == 3 && inputs[2] != inputs[0]) {
    return ShapeError("residual", inputs[2], ToString(inputs[0]));
  }
  return std::vector<TensorType>{inputs[0]};
}

void Gradient(GradientContext& context) {
  if (context.wants(0)) {
    context.Set(
        0, context.graph->Add(ops::kDropout, {context.dy(), context.input(1)}, context.node.attrs));
  }
  if (context.node.inputs.size() == 3 && context.wants(2)) context.Set(2, context.dy());
}

std::vector<OpCase> Cases() {
  const auto make = [](Shape shape, double rate, int64_t key) {
    return OpCase{{{DType::kF32, std::move(shape)}, {DType::kI32, {kAddressWords}}},
                  {{"rate", rate}, {"key", key}},
                  1 << 20};
  };
  std::vector<OpCase> cases = {make({1, 1}, 0.5, 1), make({31, 33}, 0.1, -77),
                               make({3, 1031}, 0.9, int64_t{1} << 40)};
  cases.push_back(make({33, 31}, 0.3, 5));
  cases.back().inputs.push_back({DType::kF32, {33, 31}});
  return cases;
}

}  // namespace

absl::Status CheckAddress(const TensorType& address) {
  const TensorType needed{DType::kI32, {kAddressWords}};
  return address == needed ? absl::OkStatus() : ShapeError("address", address, ToString(needed));
}

absl::Status CheckRate(const Attrs& attrs) {
  const double rate = attrs.Double("rate");
  if (rate >= 0 && rate < 1) return absl::OkStatus();
  return absl::InvalidArgumentError("a dropout rate must be in [0, 1)");
}

const OpDef kDropout = {
    .name = "dropout",
    .doc =
        "(x, address i32[4], residual?) -> 0 with probability `rate`, else x / (1 - rate); "
        "plus residual",
    .min_inputs = 2,
    .max_inputs = 3,
    .half = {.follows = 0b101, .activations = 0b1},
    .in_place = {{0, 0}, {2, 0}},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
