// SPDX-License-Identifier: Apache-2.0
// Smooth activations, by the element. gelu: D. Hendrycks and K. Gimpel, "Gaussian error linear
// units" (2016); attribute approximate is "tanh" or "none" (by erf), as torch names them.
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return 16.0 * static_cast<double>(inputs[0].elements());
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  for (const TensorType& input : inputs) {
    if (input.dtype != DType::kF32 || input != inputs[0]) {
      return ShapeError("an operand", input, ToString(TensorType{DType::kF32, inputs[0].shape}));
    }
  }
  const std::string form = attrs.String("approximate", "none");
  if (form != "none" && form != "tanh") {
    return absl::InvalidArgumentError("approximate " + form + " is not none or tanh");
  }
  return std::vector<TensorType>{inputs[0]};
}

// By the input.
void GeluGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kGeluBackward, {context.dy(), context.input(0)},
                                    context.node.attrs));
}
void SiluGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kSiluBackward, {context.dy(), context.input(0)}));
}
// By the output.
void TanhGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kTanhBackward, {context.dy(), context.output()}));
}
void SigmoidGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kSigmoidBackward, {context.dy(), context.output()}));
}

std::vector<OpCase> MakeCases(size_t operands, bool gelu) {
  std::vector<OpCase> cases;
  for (const Shape& shape : {Shape{1}, Shape{31, 33}, Shape{2, 1031}}) {
    for (const char* form : {"none", "tanh"}) {
      if (!gelu && form[0] == 't') continue;
      cases.push_back({std::vector<TensorType>(operands, {DType::kF32, shape}), {}});
      if (gelu) cases.back().attrs.Set("approximate", std::string(form));
    }
  }
  return cases;
}
std::vector<OpCase> GeluCases() { return MakeCases(1, true); }
std::vector<OpCase> GeluBackwardCases() { return MakeCases(2, true); }
std::vector<OpCase> Cases() { return MakeCases(1, false); }
std::vector<OpCase> BackwardCases() { return MakeCases(2, false); }

OpDef Forward(const char* name, const char* doc, void (*gradient)(GradientContext&)) {
  OpDef op;
  op.name = name;
  op.doc = doc;
  op.min_inputs = op.max_inputs = 1;
  op.half = {.follows = 0b1, .activations = 0b1, .elementwise = true};
  op.in_place = {{0, 0}};
  op.infer = Infer;
  op.gradient = gradient;
  op.flops = Flops;
  op.cases = Cases;
  return op;
}
OpDef Backward(const char* name, const char* doc) {
  OpDef op;
  op.name = name;
  op.doc = doc;
  op.min_inputs = op.max_inputs = 2;
  op.half = {.follows = 0b1, .activations = 0b1, .elementwise = true};
  op.in_place = {{0, 0}, {1, 0}};
  op.infer = Infer;
  op.no_gradient = kFirstOrder;
  op.flops = Flops;
  op.cases = BackwardCases;
  return op;
}
OpDef With(OpDef op, std::vector<OpCase> (*cases)()) {
  op.cases = cases;
  return op;
}

}  // namespace

const OpDef kGelu =
    With(Forward("gelu", "(x) -> x Phi(x), Phi being the normal distribution's", GeluGradient),
         GeluCases);
const OpDef kGeluBackward =
    With(Backward("gelu_backward", "(dy, x) -> dy (Phi(x) + x phi(x))"), GeluBackwardCases);
const OpDef kSilu = Forward("silu", "(x) -> x / (1 + exp(-x))", SiluGradient);
const OpDef kSiluBackward = Backward("silu_backward", "(dy, x) -> dy s (1 + x (1 - s))");
const OpDef kTanh = Forward("tanh", "(x) -> tanh(x)", TanhGradient);
const OpDef kTanhBackward = Backward("tanh_backward", "(dy, y) -> dy (1 - y^2)");
const OpDef kSigmoid = Forward("sigmoid", "(x) -> 1 / (1 + exp(-x))", SigmoidGradient);
const OpDef kSigmoidBackward = Backward("sigmoid_backward", "(dy, y) -> dy y (1 - y)");

}  // namespace lockstep::engine::ops
