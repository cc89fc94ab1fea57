// SPDX-License-Identifier: Apache-2.0
// Convolution of images [n, h, w, c] by filters [o, c / groups, kh, kw] (the ecosystem's order of
// weights), and its gradients. Attributes: stride, padding, dilation (two extents each), groups.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

TensorType OutputOf(const ConvGeometry& g) {
  return {DType::kF32, {g.images, g.out_height, g.out_width, g.filters}};
}

// How many places all images have together.
double Places(const TensorType& images) {
  return static_cast<double>(images.elements()) / static_cast<double>(images.shape[3]);
}

double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 2.0 * Places(outputs[0]) * static_cast<double>(inputs[1].elements());
}
double InputFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 2.0 * Places(inputs[0]) * static_cast<double>(inputs[1].elements());
}
double WeightFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 2.0 * Places(inputs[0]) * static_cast<double>(outputs[0].elements());
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_ASSIGN_OR_RETURN(const ConvGeometry g, ConvOf(inputs[0], inputs[1], attrs));
  const TensorType bias{DType::kF32, {g.filters}};
  if (inputs.size() >= 3 && inputs[2] != bias) return ShapeError("bias", inputs[2], ToString(bias));
  if (inputs.size() == 4 && inputs[3] != OutputOf(g)) {
    return ShapeError("residual", inputs[3], ToString(OutputOf(g)));
  }
  const std::string activation = attrs.String("activation", "none");
  if (activation != "none" && activation != "relu") {
    return absl::InvalidArgumentError("activation " + activation + " is not none or relu");
  }
  return std::vector<TensorType>{OutputOf(g)};
}

absl::StatusOr<std::vector<TensorType>> InferInput(const std::vector<TensorType>& inputs,
                                                   const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0], 4));
  LS_RETURN_IF_ERROR(CheckMatrix("weight", inputs[1], 4));
  const Shape extents = attrs.Extents("extents");
  if (extents.size() != 2) return absl::InvalidArgumentError("extents must be height and width");
  const TensorType dx{
      DType::kF32,
      {inputs[0].shape[0], extents[0], extents[1], inputs[1].shape[1] * attrs.Int("groups", 1)}};
  LS_ASSIGN_OR_RETURN(const ConvGeometry g, ConvOf(dx, inputs[1], attrs));
  if (inputs[0] != OutputOf(g)) return ShapeError("dy", inputs[0], ToString(OutputOf(g)));
  if (inputs.size() == 3 && inputs[2] != dx) return ShapeError("mask", inputs[2], ToString(dx));
  return std::vector<TensorType>{dx};
}

absl::StatusOr<std::vector<TensorType>> InferWeight(const std::vector<TensorType>& inputs,
                                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0], 4));
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[1], 4));
  const Shape kernel = attrs.Extents("kernel");
  const int64_t groups = attrs.Int("groups", 1);
  if (kernel.size() != 2) return absl::InvalidArgumentError("kernel must be height and width");
  if (groups < 1) return absl::InvalidArgumentError("groups must be at least 1");
  const TensorType dw{DType::kF32,
                      {inputs[0].shape[3], inputs[1].shape[3] / groups, kernel[0], kernel[1]}};
  LS_ASSIGN_OR_RETURN(const ConvGeometry g, ConvOf(inputs[1], dw, attrs));
  if (inputs[0] != OutputOf(g)) return ShapeError("dy", inputs[0], ToString(OutputOf(g)));
  return std::vector<TensorType>{dw};
}

void Gradient(GradientContext& context) {
  Graph* graph = context.graph;
  const Shape x = graph->type(context.input(0)).shape;
  const Shape weight = graph->type(context.input(1)).shape;
  Value dy = context.dy();
  if (context.node.attrs.String("activation") == "relu") {
    dy = graph->Add(ops::kReluBackward, {dy, context.output()});
  }
  Attrs attrs;
  for (const char* name : {"stride", "padding", "dilation"}) {
    const Shape extents = context.node.attrs.Extents(name);
    if (!extents.empty()) attrs.Set(name, extents);
  }
  const int64_t groups = context.node.attrs.Int("groups", 1);
  if (groups != 1) attrs.Set("groups", groups);
  if (context.wants(1)) {
    Attrs of_weight = attrs;
    of_weight.Set("kernel", Shape{weight[2], weight[3]});
    context.Set(1, graph->Add(ops::kConv2dBackwardWeight, {dy, context.input(0)}, of_weight));
  }
  if (context.node.inputs.size() == 4 && context.wants(3)) context.Set(3, dy);
  if (context.node.inputs.size() >= 3 && context.wants(2)) {
    const Shape shape = graph->type(dy).shape;
    const Value rows = graph->Add(ops::kReshape, {dy},
                                  {{"shape", Shape{shape[0] * shape[1] * shape[2], shape[3]}}});
    context.Set(2, graph->Add(ops::kBiasBackward, {rows}));
  }
  if (context.wants(0)) {
    attrs.Set("extents", Shape{x[1], x[2]});
    context.Set(0, graph->Add(ops::kConv2dBackwardInput, {dy, context.input(1)}, attrs));
  }
}

// One convolution of the cases: x, weight, attributes, and what follows from them.
struct Sample {
  Shape x, weight;
  Attrs attrs;
};

std::vector<Sample> Samples() {
  const auto pair = [](int64_t a, int64_t b) { return Shape{a, b}; };
  return {
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{2, 5, 7, 3}, {4, 3, 3, 3}, {{"padding", pair(1, 1)}}},
      {{1, 9, 8, 1}, {33, 1, 5, 5}, {{"padding", pair(2, 2)}}},
      {{3, 7, 6, 16}, {31, 16, 3, 3}, {{"padding", pair(1, 1)}, {"stride", pair(2, 2)}}},
      {{2, 6, 5, 33}, {17, 33, 1, 1}, {{"stride", pair(2, 2)}}},
      {{2, 5, 4, 31}, {48, 31, 1, 1}, {}},
      {{1, 11, 13, 4},
       {6, 2, 3, 2},
       {{"groups", int64_t{2}}, {"stride", pair(2, 3)}, {"padding", pair(0, 1)}}},
      {{2, 8, 9, 6}, {6, 1, 3, 3}, {{"groups", int64_t{6}}, {"padding", pair(1, 1)}}},
      {{1, 9, 10, 5}, {7, 5, 3, 3}, {{"dilation", pair(2, 3)}, {"padding", pair(2, 3)}}},
      {{1, 12, 9, 3},
       {5, 3, 7, 4},
       {{"dilation", pair(1, 2)}, {"stride", pair(3, 2)}, {"padding", pair(3, 5)}}},
      {{2, 14, 10, 64}, {40, 64, 3, 3}, {{"padding", pair(1, 1)}}},
      // By Winograd's algorithm: odd extents, channels that fill no vector, other borders.
      {{3, 9, 7, 17}, {33, 17, 3, 3}, {{"padding", pair(1, 1)}}},
      {{4, 8, 9, 33}, {18, 33, 3, 3}, {}},
      {{5, 7, 7, 16}, {16, 16, 3, 3}, {{"padding", pair(2, 0)}}},
      // On tensor cores without patches: more than one tile of each extent, strides, dilations.
      {{2, 9, 8, 72},
       {80, 72, 3, 2},
       {{"stride", pair(2, 1)}, {"padding", pair(1, 2)}, {"dilation", pair(1, 2)}}},
      {{4, 18, 16, 8}, {8, 8, 3, 3}, {{"padding", pair(1, 1)}}},
      {{3, 8, 9, 24}, {16, 24, 1, 1}, {{"stride", pair(2, 2)}}},
      {{1, 13, 11, 40}, {136, 40, 3, 3}, {{"padding", pair(1, 1)}, {"stride", pair(2, 2)}}},
  };
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const Sample& sample : Samples()) {
    cases.push_back({{F32(sample.x), F32(sample.weight)}, sample.attrs});
    if (cases.size() % 2 == 0) cases.back().inputs.push_back(F32({sample.weight[0]}));
    if (cases.size() % 4 == 0) {
      const auto g = ConvOf(F32(sample.x), F32(sample.weight), sample.attrs);
      cases.back().inputs.push_back(OutputOf(*g));
    }
    if (cases.size() % 3 == 0) cases.back().attrs.Set("activation", std::string("relu"));
  }
  return cases;
}

std::vector<OpCase> InputCases() {
  std::vector<OpCase> cases;
  for (const Sample& sample : Samples()) {
    const auto g = ConvOf(F32(sample.x), F32(sample.weight), sample.attrs);
    cases.push_back({{OutputOf(*g), F32(sample.weight)}, sample.attrs});
    cases.back().attrs.Set("extents", Shape{sample.x[1], sample.x[2]});
    if (cases.size() % 2 == 0) cases.back().inputs.push_back(F32(sample.x));
  }
  return cases;
}

std::vector<OpCase> WeightCases() {
  std::vector<OpCase> cases;
  for (const Sample& sample : Samples()) {
    const auto g = ConvOf(F32(sample.x), F32(sample.weight), sample.attrs);
    cases.push_back({{OutputOf(*g), F32(sample.x)}, sample.attrs});
    cases.back().attrs.Set("kernel", Shape{sample.weight[2], sample.weight[3]});
  }
  return cases;
}

}  // namespace

const OpDef kConv2d = {
    .name = "conv2d",
    .doc =
        "(x [n,h,w,c], weight [o,c/groups,kh,kw], bias [o]?, residual?) -> "
        "activation(x * weight + bias + residual)",
    .min_inputs = 2,
    .max_inputs = 4,
    .half = {.rounded = 0b011, .activations = 0b1, .cut_inputs = 0b1001, .cut_outputs = 0b1},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kConv2dBackwardInput = {
    .name = "conv2d_backward_input",
    .doc = "(dy, weight, mask [n,h,w,c]?) -> gradient of x [n,extents,c], 0 where mask <= 0",
    .min_inputs = 2,
    .max_inputs = 3,
    .half = {.rounded = 0b011, .activations = 0b1, .cut_inputs = 0b101, .cut_outputs = 0b1},
    .infer = InferInput,
    .no_gradient = kFirstOrder,
    .flops = InputFlops,
    .cases = InputCases,
};

const OpDef kConv2dBackwardWeight = {
    .name = "conv2d_backward_weight",
    .doc = "(dy, x [n,h,w,c]) -> gradient of the weight [o,c/groups,kernel]",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.rounded = 0b11, .cut_inputs = 0b11, .sums = 0b1},
    .accumulates = true,
    .infer = InferWeight,
    .no_gradient = kFirstOrder,
    .flops = WeightFlops,
    .cases = WeightCases,
};

}  // namespace lockstep::engine::ops
