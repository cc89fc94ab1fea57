// SPDX-License-Identifier: Apache-2.0
// A convolution (ops/conv2d.cc, the same attributes) with the pooling that follows it: the largest
// of each 2 x 2 pixels, without overlap; a last odd row or column falls away. `places` says which
// pixel it was: 0 to 3, row by row, the first of equals, NaN being the largest. It is chosen before
// the activation, which does not change the order. A gradient of what is pooled needs no more than
// the places to be one of the convolution.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

// Of a convolution's result.
absl::StatusOr<TensorType> PooledOf(const ConvGeometry& g) {
  if (g.out_height < 2 || g.out_width < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of 2 x 2 does not fit into ", g.out_height, " x ", g.out_width));
  }
  return TensorType{DType::kF32, {g.images, g.out_height / 2, g.out_width / 2, g.filters}};
}
TensorType PlacesOf(const TensorType& pooled) { return {DType::kI32, pooled.shape}; }

// Multiplications at the pixels that are pooled; `pooled` values of `weight` each.
double PooledFlops(const TensorType& pooled, const TensorType& weight) {
  const int64_t places = pooled.elements() / pooled.shape[3];
  return 2.0 * 4.0 * static_cast<double>(places) * static_cast<double>(weight.elements());
}
double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return PooledFlops(outputs[0], inputs[1]);
}
double WeightFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return PooledFlops(inputs[0], outputs[0]);
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_ASSIGN_OR_RETURN(const ConvGeometry g, ConvOf(inputs[0], inputs[1], attrs));
  const TensorType bias{DType::kF32, {g.filters}};
  if (inputs.size() == 3 && inputs[2] != bias) return ShapeError("bias", inputs[2], ToString(bias));
  const std::string activation = attrs.String("activation", "none");
  if (activation != "none" && activation != "relu") {
    return absl::InvalidArgumentError("activation " + activation + " is not none or relu");
  }
  LS_ASSIGN_OR_RETURN(const TensorType y, PooledOf(g));
  return std::vector<TensorType>{y, PlacesOf(y)};
}

absl::StatusOr<std::vector<TensorType>> InferUnpool(const std::vector<TensorType>& inputs,
                                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0], 4));
  if (inputs[1] != PlacesOf(inputs[0])) {
    return ShapeError("places", inputs[1], ToString(PlacesOf(inputs[0])));
  }
  const Shape extents = attrs.Extents("extents");
  const Shape& y = inputs[0].shape;
  if (extents.size() != 2 || extents[0] / 2 != y[1] || extents[1] / 2 != y[2]) {
    return absl::InvalidArgumentError(
        absl::StrCat("extents must be height and width that pool to ", y[1], " x ", y[2]));
  }
  return std::vector<TensorType>{{DType::kF32, {y[0], extents[0], extents[1], y[3]}}};
}

absl::StatusOr<std::vector<TensorType>> InferWeight(const std::vector<TensorType>& inputs,
                                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0], 4));
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[2], 4));
  if (inputs[1] != PlacesOf(inputs[0])) {
    return ShapeError("places", inputs[1], ToString(PlacesOf(inputs[0])));
  }
  const Shape kernel = attrs.Extents("kernel");
  const int64_t groups = attrs.Int("groups", 1);
  if (kernel.size() != 2) return absl::InvalidArgumentError("kernel must be height and width");
  if (groups < 1) return absl::InvalidArgumentError("groups must be at least 1");
  const TensorType dw{DType::kF32,
                      {inputs[0].shape[3], inputs[2].shape[3] / groups, kernel[0], kernel[1]}};
  LS_ASSIGN_OR_RETURN(const ConvGeometry g, ConvOf(inputs[2], dw, attrs));
  LS_ASSIGN_OR_RETURN(const TensorType y, PooledOf(g));
  if (inputs[0] != y) return ShapeError("dy", inputs[0], ToString(y));
  return std::vector<TensorType>{dw};
}

// As conv2d's, on the gradient spread over the pixels.
void Gradient(GradientContext& context) {
  Graph* graph = context.graph;
  const TensorType x = graph->type(context.input(0)), weight = graph->type(context.input(1));
  const absl::StatusOr<ConvGeometry> g = ConvOf(x, weight, context.node.attrs);
  if (!g.ok()) return;  // the node would not be there
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
    of_weight.Set("kernel", Shape{weight.shape[2], weight.shape[3]});
    context.Set(1, graph->Add(ops::kConv2dMaxPoolBackwardWeight,
                              {dy, context.output(1), context.input(0)}, of_weight));
  }
  if (context.node.inputs.size() == 3 && context.wants(2)) {
    const Shape shape = graph->type(dy).shape;
    const Value rows = graph->Add(ops::kReshape, {dy},
                                  {{"shape", Shape{shape[0] * shape[1] * shape[2], shape[3]}}});
    context.Set(2, graph->Add(ops::kBiasBackward, {rows}));
  }
  if (context.wants(0)) {
    const Value spread = graph->Add(ops::kMaxUnpool2d, {dy, context.output(1)},
                                    {{"extents", Shape{g->out_height, g->out_width}}});
    attrs.Set("extents", Shape{x.shape[1], x.shape[2]});
    context.Set(0, graph->Add(ops::kConv2dBackwardInput, {spread, context.input(1)}, attrs));
  }
}

struct Sample {
  Shape x, weight;
  Attrs attrs;
};

std::vector<Sample> Samples() {
  const auto pair = [](int64_t a, int64_t b) { return Shape{a, b}; };
  return {
      {{1, 2, 2, 1}, {1, 1, 1, 1}, {}},
      // Direct: few values below the window, filters that fill no vector, odd extents.
      {{3, 12, 8, 1}, {32, 1, 3, 3}, {{"padding", pair(1, 1)}}},
      {{2, 9, 11, 1}, {37, 1, 5, 5}, {{"padding", pair(2, 2)}}},
      {{2, 8, 7, 3}, {20, 3, 3, 3}, {}},
      {{2, 7, 9, 2}, {8, 2, 2, 5}, {{"padding", pair(1, 3)}}},
      // By Winograd's algorithm.
      {{5, 9, 7, 17}, {33, 17, 3, 3}, {{"padding", pair(1, 1)}}},
      {{3, 14, 10, 32}, {64, 32, 3, 3}, {{"padding", pair(1, 1)}}},
      // By another kernel that pools afterwards.
      {{2, 9, 8, 6}, {6, 1, 3, 3}, {{"groups", int64_t{6}}, {"stride", pair(2, 1)}}},
      {{2, 9, 10, 31}, {48, 31, 1, 1}, {}},
  };
}

TensorType PooledOf(const Sample& sample) {
  return *PooledOf(*ConvOf(F32(sample.x), F32(sample.weight), sample.attrs));
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const Sample& sample : Samples()) {
    cases.push_back({{F32(sample.x), F32(sample.weight)}, sample.attrs});
    if (cases.size() % 3 != 0) cases.back().inputs.push_back(F32({sample.weight[0]}));
    if (cases.size() % 2 == 0) cases.back().attrs.Set("activation", std::string("relu"));
  }
  return cases;
}

std::vector<OpCase> UnpoolCases() {
  const auto make = [](const Shape& y, int64_t height, int64_t width) {
    return OpCase{{F32(y), {DType::kI32, y}}, {{"extents", Shape{height, width}}}, /*classes=*/4};
  };
  return {make({1, 1, 1, 1}, 2, 2), make({2, 3, 4, 33}, 7, 8), make({3, 2, 2, 16}, 4, 5)};
}

std::vector<OpCase> WeightCases() {
  std::vector<OpCase> cases;
  for (const Sample& sample : Samples()) {
    const TensorType y = PooledOf(sample);
    cases.push_back({{y, PlacesOf(y), F32(sample.x)}, sample.attrs, /*classes=*/4});
    cases.back().attrs.Set("kernel", Shape{sample.weight[2], sample.weight[3]});
  }
  return cases;
}

}  // namespace

const OpDef kConv2dMaxPool = {
    .name = "conv2d_max_pool",
    .doc =
        "(x [n,h,w,c], weight [o,c/groups,kh,kw], bias [o]?) -> the largest of each 2 x 2 pixels "
        "of activation(x * weight + bias), places i32",
    .min_inputs = 2,
    .max_inputs = 3,
    .half = {.rounded = 0b011, .activations = 0b01, .cut_inputs = 0b001, .cut_outputs = 0b11},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kMaxUnpool2d = {
    .name = "max_unpool2d",
    .doc = "(dy [n,r,c,o], places i32) -> dy at each window's place, else 0 [n,extents,o]",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b11, .cut_outputs = 0b1},
    .infer = InferUnpool,
    .no_gradient = kFirstOrder,
    .flops = OutputEach,
    .cases = UnpoolCases,
};

const OpDef kConv2dMaxPoolBackwardWeight = {
    .name = "conv2d_max_pool_backward_weight",
    .doc = "(dy [n,r,c,o], places i32, x [n,h,w,c]) -> gradient of the weight [o,c/groups,kernel]",
    .min_inputs = 3,
    .max_inputs = 3,
    .half = {.rounded = 0b101, .cut_inputs = 0b111, .sums = 0b1},
    .accumulates = true,
    .infer = InferWeight,
    .no_gradient = kFirstOrder,
    .flops = WeightFlops,
    .cases = WeightCases,
};

}  // namespace lockstep::engine::ops
