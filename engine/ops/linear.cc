// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

bool IsSmooth(const std::string& activation) {
  return activation == "gelu" || activation == "gelu_tanh" || activation == "silu";
}

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 2.0 * static_cast<double>(inputs[0].elements()) * static_cast<double>(outputs[0].shape[1]);
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("weight", inputs[1]));
  const bool in_out = attrs.Int("in_out") != 0;
  const int64_t m = inputs[0].shape[0], k = inputs[0].shape[1];
  const int64_t n = inputs[1].shape[in_out ? 1 : 0];
  if (inputs[1].shape[in_out ? 0 : 1] != k) {
    return ShapeError("weight", inputs[1],
                      in_out ? absl::StrCat("f32[", k, ",*]") : absl::StrCat("f32[*,", k, "]"));
  }
  const TensorType bias{DType::kF32, {n}};
  if (inputs.size() >= 3 && inputs[2] != bias) return ShapeError("bias", inputs[2], ToString(bias));
  const TensorType y{DType::kF32, {m, n}};
  if (inputs.size() == 4 && inputs[3] != y) return ShapeError("addend", inputs[3], ToString(y));
  const std::string activation = attrs.String("activation", "none");
  if (activation != "none" && activation != "relu" && !IsSmooth(activation)) {
    return absl::InvalidArgumentError("activation " + activation +
                                      " is not none, relu, gelu, gelu_tanh or silu");
  }
  const bool keep = attrs.Int("keep") != 0;
  if (keep && (activation != "gelu_tanh" || inputs.size() == 4)) {
    return absl::InvalidArgumentError("only gelu_tanh without an addend keeps what it takes");
  }
  return std::vector<TensorType>(keep ? 2 : 1, y);
}

// The gradient of what the activation takes, with the sums made again: where they are kept, a pass
// has put its gradient in already (passes/epilogue_fusion.h).
Value SmoothGradient(GradientContext& context, const std::string& activation) {
  Attrs plain = context.node.attrs;
  plain.Set("activation", std::string("none"));
  plain.Set("keep", int64_t{0});
  const Value x = context.graph->Add(ops::kLinear, context.node.inputs, plain);
  if (activation == "silu") return context.graph->Add(ops::kSiluBackward, {context.dy(), x});
  return context.graph->Add(
      ops::kGeluBackward, {context.dy(), x},
      {{"approximate", std::string(activation == "gelu_tanh" ? "tanh" : "none")}});
}

void Gradient(GradientContext& context) {
  Graph* graph = context.graph;
  Value dy = context.dy();
  const std::string activation = context.node.attrs.String("activation");
  if (activation == "relu") dy = graph->Add(ops::kReluBackward, {dy, context.output()});
  if (IsSmooth(activation)) dy = SmoothGradient(context, activation);
  const int64_t in_out = context.node.attrs.Int("in_out");
  const Value x = context.input(0);
  // Weights first: their bucket is ready earlier, and x dies with them.
  const bool fp8 = !context.node.attrs.String(kFp8Attr).empty();
  if (context.wants(1)) {
    Attrs attrs;
    if (fp8) attrs.Set(kFp8Attr, std::string(in_out != 0 ? "e4m3,e5m2" : "e5m2,e4m3"));
    context.Set(1, in_out != 0 ? graph->Add(ops::kLinearBackwardWeight, {x, dy}, attrs)
                               : graph->Add(ops::kLinearBackwardWeight, {dy, x}, attrs));
  }
  if (context.node.inputs.size() == 4 && context.wants(3)) context.Set(3, dy);
  if (context.node.inputs.size() >= 3 && context.wants(2)) {
    context.Set(2, graph->Add(ops::kBiasBackward, {dy}));
  }
  if (context.wants(0)) {
    Attrs attrs;
    if (in_out != 0) attrs.Set("in_out", in_out);
    if (fp8) attrs.Set(kFp8Attr, std::string("e5m2,e4m3"));
    context.Set(0, graph->Add(ops::kLinearBackwardInput, {dy, context.input(1)}, attrs));
  }
}

std::vector<OpCase> Cases() {
  const auto make = [](int64_t m, int64_t k, int64_t n, bool bias, const std::string& activation) {
    OpCase test{{{DType::kF32, {m, k}}, {DType::kF32, {n, k}}}, {{"activation", activation}}};
    if (bias) test.inputs.push_back({DType::kF32, {n}});
    return test;
  };
  const auto turned = [&](OpCase test) {
    std::swap(test.inputs[1].shape[0], test.inputs[1].shape[1]);
    test.attrs.Set("in_out", int64_t{1});
    return test;
  };
  const auto kept = [](OpCase test) {
    test.attrs.Set("keep", int64_t{1});
    return test;
  };
  const auto added = [](OpCase test) {
    test.inputs.push_back({DType::kF32, {test.inputs[0].shape[0], test.inputs[2].shape[0]}});
    return test;
  };
  return {added(make(31, 300, 33, true, "none")),
          added(turned(make(300, 33, 65, true, "relu"))),
          added(make(600, 17, 31, true, "none")),
          added(make(33, 20, 200, true, "gelu")),
          make(31, 40, 33, true, "gelu"),
          turned(make(300, 33, 65, true, "gelu_tanh")),
          kept(make(33, 40, 72, true, "gelu_tanh")),
          kept(turned(make(300, 33, 65, true, "gelu_tanh"))),
          kept(make(64, 24, 16, false, "gelu_tanh")),
          make(600, 300, 31, false, "silu"),
          make(33, 30, 200, true, "gelu"),
          turned(make(33, 64, 20, true, "gelu")),
          turned(make(31, 33, 5, true, "none")),
          turned(make(33, 64, 96, true, "relu")),
          turned(make(600, 31, 32, false, "none")),
          make(1, 1, 1, true, "none"),
          make(31, 33, 1, true, "relu"),
          make(33, 31, 33, false, "none"),
          make(1, 33, 31, true, "relu"),
          make(64, 40, 10, true, "none"),
          make(16, 805, 34, true, "relu"),
          make(300, 17, 16, true, "none")};
}

}  // namespace

const OpDef kLinear = {
    .name = "linear",
    .doc =
        "(x [m,k], weight [n,k], or [k,n] with in_out=1, bias [n]?, addend [m,n]?) -> "
        "activation(x weight^T + bias + addend) [m,n], with keep=1 what gelu_tanh takes too [m,n]",
    .min_inputs = 2,
    .max_inputs = 4,
    .half = {.rounded = 0b0011, .activations = 0b11, .cut_inputs = 0b1001, .cut_outputs = 0b11},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

}  // namespace lockstep::engine::ops
