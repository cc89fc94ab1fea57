// SPDX-License-Identifier: Apache-2.0
// The gradients of linear.
#include <array>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

double InputFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 2.0 * static_cast<double>(outputs[0].elements()) * static_cast<double>(inputs[0].shape[1]);
}

double WeightFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 2.0 * static_cast<double>(outputs[0].elements()) * static_cast<double>(inputs[0].shape[0]);
}

absl::StatusOr<std::vector<TensorType>> InferInput(const std::vector<TensorType>& inputs,
                                                   const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("weight", inputs[1]));
  const bool in_out = attrs.Int("in_out") != 0;
  const int64_t n = inputs[0].shape[1];
  if (inputs[1].shape[in_out ? 1 : 0] != n) {
    return ShapeError("weight", inputs[1],
                      in_out ? absl::StrCat("f32[*,", n, "]") : absl::StrCat("f32[", n, ",*]"));
  }
  if (ThirdOf(attrs) == Third::kUnknown) {
    return absl::InvalidArgumentError("third " + attrs.String("third") +
                                      " is not mask, addend or gelu_tanh");
  }
  const TensorType dx{DType::kF32, {inputs[0].shape[0], inputs[1].shape[in_out ? 0 : 1]}};
  if (inputs.size() == 3 && inputs[2] != dx) {
    return ShapeError(attrs.String("third", "mask"), inputs[2], ToString(dx));
  }
  return std::vector<TensorType>{dx};
}

absl::StatusOr<std::vector<TensorType>> InferWeight(const std::vector<TensorType>& inputs,
                                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[1]));
  const int64_t m = inputs[0].shape[0];
  if (inputs[1].shape[0] != m) return ShapeError("x", inputs[1], absl::StrCat("f32[", m, ",*]"));
  std::vector<TensorType> made = {{DType::kF32, {inputs[0].shape[1], inputs[1].shape[1]}}};
  const int64_t sums = attrs.Int("sums");
  if (sums < 0 || sums > 2) {
    return absl::InvalidArgumentError(absl::StrCat("sums is ", sums, ", not 0, 1 or 2"));
  }
  if (sums > 0) made.push_back({DType::kF32, {inputs[static_cast<size_t>(sums) - 1].shape[1]}});
  return made;
}

absl::StatusOr<std::vector<TensorType>> InferBias(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  return std::vector<TensorType>{{DType::kF32, {inputs[0].shape[1]}}};
}

OpCase Make(Shape a, Shape b) {
  return {{{DType::kF32, std::move(a)}, {DType::kF32, std::move(b)}}, {}};
}

std::vector<OpCase> InputCases() {
  std::vector<OpCase> cases = {Make({1, 1}, {1, 1}), Make({31, 33}, {33, 31}),
                               Make({33, 10}, {10, 64}), Make({64, 805}, {805, 33}),
                               Make({600, 9}, {9, 31})};
  cases[2].inputs.push_back({DType::kF32, {33, 64}});
  cases[3].inputs.push_back({DType::kF32, {64, 33}});
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{31, 33, 5}, {33, 64, 96}, {600, 33, 31}}) {
    cases.push_back(Make({m, n}, {k, n}));
    cases.back().attrs.Set("in_out", int64_t{1});
  }
  // What follows the product, on tiles and on what is transposed after it.
  for (const char* third : {"mask", "addend", "gelu_tanh"}) {
    for (const int64_t in_out : {0, 1}) {
      for (const int64_t m : {33, 300}) {
        cases.push_back(in_out != 0 ? Make({m, 40}, {65, 40}) : Make({m, 40}, {40, 65}));
        cases.back().inputs.push_back({DType::kF32, {m, 65}});
        cases.back().attrs.Set("in_out", in_out);
        cases.back().attrs.Set("third", std::string(third));
      }
    }
  }
  return cases;
}

std::vector<OpCase> WeightCases() {
  const auto summed = [](OpCase test, int64_t operand) {
    test.attrs.Set("sums", operand);
    return test;
  };
  return {Make({1, 1}, {1, 1}),
          Make({31, 33}, {31, 31}),
          Make({64, 10}, {64, 33}),
          Make({805, 31}, {805, 48}),
          Make({16, 520}, {16, 33}),
          Make({33, 64}, {33, 256}),
          summed(Make({64, 40}, {64, 24}), 1),
          summed(Make({64, 40}, {64, 24}), 2),
          summed(Make({805, 31}, {805, 48}), 1),
          summed(Make({33, 9}, {33, 65}), 2)};
}

std::vector<OpCase> BiasCases() {
  return {{{{DType::kF32, {1, 1}}}, {}},
          {{{DType::kF32, {31, 33}}}, {}},
          {{{DType::kF32, {64, 256}}}, {}}};
}

}  // namespace

Third ThirdOf(const Attrs& attrs) {
  const std::string third = attrs.String("third", "mask");
  if (third == "mask") return Third::kMask;
  if (third == "gelu_tanh") return Third::kGelu;
  return third == "addend" ? Third::kAddend : Third::kUnknown;
}

const OpDef kLinearBackwardInput = {
    .name = "linear_backward_input",
    .doc =
        "(dy [m,n], weight [n,k] or [k,n], third [m,k]?) -> dy weight [m,k], 0 where a mask <= 0, "
        "plus an addend, or times gelu_tanh's slope",
    .min_inputs = 2,
    .max_inputs = 3,
    .half = {.rounded = 0b011, .activations = 0b1, .cut_inputs = 0b101, .cut_outputs = 0b1},
    .infer = InferInput,
    .no_gradient = kFirstOrder,
    .flops = InputFlops,
    .cases = InputCases,
};

const OpDef kLinearBackwardWeight = {
    .name = "linear_backward_weight",
    .doc =
        "(dy [m,n], x [m,k]) -> dy^T x [n,k], with sums=1 or 2 the sums over rows of that operand "
        "too",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.rounded = 0b11, .cut_inputs = 0b11, .sums = 0b11},
    .accumulates = true,
    .infer = InferWeight,
    .no_gradient = kFirstOrder,
    .flops = WeightFlops,
    .cases = WeightCases,
};

const OpDef kBiasBackward = {
    .name = "bias_backward",
    .doc = "(dy [m,n]) -> sum over rows [n]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.cut_inputs = 0b1, .sums = 0b1},
    .accumulates = true,
    .infer = InferBias,
    .no_gradient = kFirstOrder,
    .flops = InputEach,
    .cases = BiasCases,
};

}  // namespace lockstep::engine::ops
