// SPDX-License-Identifier: Apache-2.0
#include "engine/models/sequence.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

using Kind = LayerSpec::Kind;

constexpr int64_t kMaxWidth = 1 << 20;

Window WindowOf(const LayerSpec& layer) {
  Window window;
  for (int axis = 0; axis < 2; ++axis) {
    window.kernel[axis] = layer.kernel;
    window.stride[axis] = layer.stride;
    window.padding[axis] = layer.padding;
    window.dilation[axis] = layer.dilation;
  }
  return window;
}

absl::Status CheckWindow(const LayerSpec& layer) {
  for (const int64_t value : {layer.kernel, layer.stride, layer.dilation, layer.groups}) {
    if (value < 1 || value > 65536) {
      return absl::InvalidArgumentError(
          "kernel, stride, dilation and groups must be from 1 to 65536");
    }
  }
  if (layer.padding < 0 || layer.padding > 65536) {
    return absl::InvalidArgumentError("padding must be from 0 to 65536");
  }
  return absl::OkStatus();
}

Attrs WindowAttrs(const LayerSpec& layer) {
  Attrs attrs;
  if (layer.kind != Kind::kConv) attrs.Set("kernel", Shape{layer.kernel, layer.kernel});
  if (layer.stride != 1) attrs.Set("stride", Shape{layer.stride, layer.stride});
  if (layer.padding != 0) attrs.Set("padding", Shape{layer.padding, layer.padding});
  if (layer.dilation != 1) attrs.Set("dilation", Shape{layer.dilation, layer.dilation});
  if (layer.groups != 1) attrs.Set("groups", layer.groups);
  return attrs;
}

Value Flatten(Graph* graph, Value x) {
  if (!x.valid()) return x;
  const Shape shape = graph->type(x).shape;
  if (shape.size() == 2) return x;
  if (shape[3] > 1 && shape[1] * shape[2] > 1) x = graph->Add(ops::kChannelsFirst, {x});
  if (!x.valid()) return x;
  return graph->Add(ops::kReshape, {x},
                    {{"shape", Shape{shape[0], shape[1] * shape[2] * shape[3]}}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Sequence::Make(std::vector<LayerSpec> layers,
                                                      const InputSpec& input) {
  auto model = std::make_unique<Sequence>();
  if (input.fields.empty() || input.fields[0].name != "inputs" ||
      input.fields[0].type != FieldSpec::Type::kFloat32) {
    return absl::InvalidArgumentError("the model takes samples of fp32 values with one label each");
  }
  const Shape& shape = input.fields[0].shape;
  Flow flow{true, 1, 1, 1};
  if (shape.size() == 1) {
    flow = {false, shape[0], 1, 1};
  } else if (shape.size() == 2) {
    flow = {true, 1, shape[0], shape[1]};
  } else if (shape.size() == 3) {
    flow = {true, shape[0], shape[1], shape[2]};
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("samples of ", shape.size(), " extents: the model takes 1 to 3 of them"));
  }
  model->classes_ = input.classes;
  if (layers.empty()) return absl::InvalidArgumentError("the model has no layers");
  if (layers.back().kind == Kind::kLinear && layers.back().width == 0) {
    layers.back().width = input.classes;
  }
  LS_RETURN_IF_ERROR(model->Add(&layers, "", &flow));
  if (flow.features() != input.classes) {
    const bool linear = layers.back().kind == Kind::kLinear;
    return absl::InvalidArgumentError(absl::StrCat(
        "the last layer gives ", flow.features(), " values for ", input.classes, " classes: ",
        linear ? absl::StrCat("its features must be ", input.classes, "; leave them out")
               : "end with a linear layer"));
  }
  if (model->parameters_.empty()) return absl::InvalidArgumentError("no layer has parameters");
  const LayerSpec& last = layers.back();
  const std::string head = last.kind == Kind::kLinear ? last.name + ".weight" : "";
  for (ParameterSpec& parameter : model->parameters_) parameter.hidden = parameter.name != head;
  std::set<std::string> names;
  for (const ParameterSpec& parameter : model->parameters_) {
    if (names.insert(parameter.name).second) continue;
    return absl::InvalidArgumentError("two layers have a parameter " + parameter.name);
  }
  model->layers_ = std::move(layers);
  return model;
}

absl::Status Sequence::Add(std::vector<LayerSpec>* layers, const std::string& prefix, Flow* flow) {
  for (size_t i = 0; i < layers->size(); ++i) {
    LayerSpec& layer = (*layers)[i];
    if (layer.name.empty()) layer.name = absl::StrCat(prefix, i);
    if (const absl::Status status = AddLayer(&layer, flow); !status.ok()) {
      return Annotate(status, "layer " + layer.name);
    }
  }
  return absl::OkStatus();
}

absl::Status Sequence::AddLayer(LayerSpec* layer, Flow* flow) {
  switch (layer->kind) {
    case Kind::kLinear:
      if (layer->width == 0) {
        return absl::InvalidArgumentError(absl::StrCat("a linear layer needs features, from 1 to ",
                                                       kMaxWidth,
                                                       "; only the last layer may leave them out"));
      }
      if (layer->width < 1 || layer->width > kMaxWidth) {
        return absl::InvalidArgumentError(
            absl::StrCat("a width of ", layer->width, ": it must be from 1 to ", kMaxWidth));
      }
      AddLinear(layer, flow);
      return absl::OkStatus();
    case Kind::kConv:
      return AddConv(layer, flow);
    case Kind::kBatchNorm:
      if (!(layer->eps > 0) || !(layer->momentum >= 0 && layer->momentum <= 1)) {
        return absl::InvalidArgumentError("eps must be above 0 and momentum from 0 to 1");
      }
      AddBatchNorm(*layer, *flow);
      return absl::OkStatus();
    case Kind::kMaxPool:
    case Kind::kAvgPool:
      return AddPool(layer, flow);
    case Kind::kGlobalAveragePool:
      if (!flow->image) return absl::InvalidArgumentError("a pool needs an image");
      *flow = {false, flow->channels, 1, 1};
      return absl::OkStatus();
    case Kind::kFlatten:
      *flow = {false, flow->features(), 1, 1};
      return absl::OkStatus();
    case Kind::kResidual:
      return AddResidual(layer, flow);
    case Kind::kDropout:
      if (!(layer->rate >= 0 && layer->rate < 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("a dropout of ", layer->rate, ": it must be in [0, 1)"));
      }
      random_ |= layer->rate > 0;
      return absl::OkStatus();
    case Kind::kLayerNorm:
      if (!(layer->eps > 0)) return absl::InvalidArgumentError("eps must be above 0");
      if (flow->channels == 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a layer_norm of one value gives 0 everywhere",
            flow->image ? ", and the image has one channel: put flatten before it" : ""));
      }
      AddNorm(*layer, *flow);
      return absl::OkStatus();
    case Kind::kRelu:
    case Kind::kGelu:
    case Kind::kSilu:
    case Kind::kTanh:
    case Kind::kSigmoid:
      break;
  }
  return absl::OkStatus();
}

// torch.nn.Linear: kaiming_uniform_(a = sqrt(5)) is U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the bias
// too.
void Sequence::AddLinear(LayerSpec* layer, Flow* flow) {
  const int64_t in = flow->features();
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  parameters_.push_back(
      {layer->name + ".weight", {layer->width, in}, ParameterSpec::Init::kUniform, bound});
  if (layer->bias) {
    parameters_.push_back(
        {layer->name + ".bias", {layer->width}, ParameterSpec::Init::kUniform, bound, false});
  }
  *flow = {false, layer->width, 1, 1};
}

// torch.nn.Conv2d has the same default; residual networks take kaiming_normal_(mode="fan_out").
absl::Status Sequence::AddConv(LayerSpec* layer, Flow* flow) {
  if (layer->stride == 0) layer->stride = 1;
  if (!flow->image) return absl::InvalidArgumentError("a convolution needs an image");
  LS_RETURN_IF_ERROR(CheckWindow(*layer));
  if (layer->width < 1 || layer->width > kMaxWidth || layer->width % layer->groups != 0 ||
      flow->channels % layer->groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(flow->channels, " to ", layer->width,
                                                   " channels in ", layer->groups, " groups"));
  }
  const Window window = WindowOf(*layer);
  const Shape shape = {layer->width, flow->channels / layer->groups, layer->kernel, layer->kernel};
  const double fan_in = static_cast<double>(shape[1] * layer->kernel * layer->kernel);
  const double fan_out = static_cast<double>(shape[0] * layer->kernel * layer->kernel);
  const double bound = 1 / std::sqrt(fan_in);
  parameters_.push_back(
      {layer->name + ".weight", shape,
       layer->fan_out ? ParameterSpec::Init::kNormal : ParameterSpec::Init::kUniform,
       layer->fan_out ? std::sqrt(2 / fan_out) : bound});
  if (layer->bias) {
    parameters_.push_back(
        {layer->name + ".bias", {layer->width}, ParameterSpec::Init::kUniform, bound, false});
  }
  *flow = {true, layer->width, window.Places(0, flow->height), window.Places(1, flow->width)};
  if (flow->height >= 1 && flow->width >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError("the window does not fit into the image");
}

void Sequence::AddNorm(const LayerSpec& layer, const Flow& flow) {
  const auto add = [&](const char* what, double value) {
    parameters_.push_back(
        {layer.name + what, {flow.channels}, ParameterSpec::Init::kConstant, value, false});
  };
  add(".weight", layer.zero ? 0 : 1);
  add(".bias", 0);
}

void Sequence::AddBatchNorm(const LayerSpec& layer, const Flow& flow) {
  AddNorm(layer, flow);
  statistics_.push_back({layer.name, flow.channels, layer.momentum});
}

absl::Status Sequence::AddPool(LayerSpec* layer, Flow* flow) {
  if (layer->stride == 0) layer->stride = layer->kernel;
  if (!flow->image) return absl::InvalidArgumentError("a pool needs an image");
  LS_RETURN_IF_ERROR(CheckWindow(*layer));
  const Window window = WindowOf(*layer);
  *flow = {true, flow->channels, window.Places(0, flow->height), window.Places(1, flow->width)};
  if (flow->height >= 1 && flow->width >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError("the window does not fit into the image");
}

absl::Status Sequence::AddResidual(LayerSpec* layer, Flow* flow) {
  Flow shortcut = *flow;
  LS_RETURN_IF_ERROR(Add(&layer->body, layer->name + ".body.", flow));
  LS_RETURN_IF_ERROR(Add(&layer->shortcut, layer->name + ".shortcut.", &shortcut));
  if (*flow == shortcut) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the body gives ", flow->channels, " x ", flow->height, " x ", flow->width,
      ", but the shortcut ", shortcut.channels, " x ", shortcut.height, " x ", shortcut.width));
}

Value Sequence::Build(Graph* graph, const ModelInputs& inputs) const {
  Value x = inputs.Field("inputs");
  if (!x.valid()) return x;
  const Shape shape = graph->type(x).shape;
  if (shape.size() == 3 || (shape.size() == 4 && shape[1] == 1)) {
    const size_t n = shape.size();
    x = graph->Add(ops::kReshape, {x}, {{"shape", Shape{shape[0], shape[n - 2], shape[n - 1], 1}}});
  } else if (shape.size() == 4) {
    x = graph->Add(ops::kChannelsLast, {x});
  }
  const std::vector<bool> ends = BlockEnds();
  for (size_t i = 0; i < layers_.size() && x.valid(); ++i) {
    x = BuildLayer(graph, inputs, layers_[i], x);
    if (ends[i]) graph->AddBoundary(x);
  }
  return Flatten(graph, x);
}

// After each residual block and its activation; without any, after each pool; without any, after
// each group of about the root of the number of layers.
std::vector<bool> Sequence::BlockEnds() const {
  const size_t count = layers_.size();
  std::vector<bool> ends(count, false);
  const auto mark = [&](auto matches) {
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      if (!matches(layers_[i].kind)) continue;
      const bool activated = i + 1 < count && layers_[i + 1].kind == Kind::kRelu;
      ends[activated ? i + 1 : i] = any = true;
    }
    return any;
  };
  if (mark([](Kind kind) { return kind == Kind::kResidual; })) return ends;
  if (mark([](Kind kind) { return kind == Kind::kMaxPool || kind == Kind::kAvgPool; })) return ends;
  const auto block = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  for (size_t i = block; i < count; i += block) ends[i - 1] = true;
  return ends;
}

Value Sequence::BuildLayers(Graph* graph, const ModelInputs& inputs,
                            const std::vector<LayerSpec>& layers, Value x) {
  for (const LayerSpec& layer : layers) {
    if (!x.valid()) return x;
    x = BuildLayer(graph, inputs, layer, x);
  }
  return x;
}

Value Sequence::BuildDropout(Graph* graph, const ModelInputs& inputs, const LayerSpec& layer,
                             Value x) {
  if (!inputs.training || layer.rate == 0) return x;
  const auto key = static_cast<int64_t>(SiteKey(inputs.seed, layer.name));
  return graph->Add(ops::kDropout, {x, inputs.address}, {{"rate", layer.rate}, {"key", key}},
                    layer.name);
}

// The op takes rows: those of an image are its places.
Value Sequence::BuildLayerNorm(Graph* graph, const ModelInputs& inputs, const LayerSpec& layer,
                               Value x) {
  const Shape shape = graph->type(x).shape;
  if (shape.size() != 2) {
    x = graph->Add(ops::kReshape, {x},
                   {{"shape", Shape{Elements(shape) / shape.back(), shape.back()}}});
  }
  x = graph->Add(
      ops::kLayerNorm,
      {x, inputs.Parameter(layer.name + ".weight"), inputs.Parameter(layer.name + ".bias")},
      {{"eps", layer.eps}}, layer.name);
  if (!x.valid() || shape.size() == 2) return x;
  return graph->Add(ops::kReshape, {x}, {{"shape", shape}});
}

Value Sequence::BuildLayer(Graph* graph, const ModelInputs& inputs, const LayerSpec& layer,
                           Value x) {
  const auto parameter = [&](const char* what) { return inputs.Parameter(layer.name + what); };
  switch (layer.kind) {
    case Kind::kLinear:
    case Kind::kConv: {
      const bool linear = layer.kind == Kind::kLinear;
      if (linear) x = Flatten(graph, x);
      if (!x.valid()) return x;
      std::vector<Value> operands = {x, parameter(".weight")};
      if (layer.bias) operands.push_back(parameter(".bias"));
      return graph->Add(linear ? ops::kLinear : ops::kConv2d, operands,
                        linear ? Attrs() : WindowAttrs(layer), layer.name);
    }
    case Kind::kBatchNorm: {
      std::vector<Value> operands = {x, parameter(".weight"), parameter(".bias")};
      if (!inputs.training) {
        operands.push_back(parameter(".running_mean"));
        operands.push_back(parameter(".running_var"));
      }
      return graph->Add(inputs.training ? ops::kBatchNorm : ops::kBatchNormInference, operands,
                        {{"eps", layer.eps}}, layer.name);
    }
    case Kind::kRelu:
      return graph->Add(ops::kRelu, {x}, {}, layer.name);
    case Kind::kGelu:
      return graph->Add(ops::kGelu, {x}, {{"approximate", layer.tanh ? "tanh" : "none"}},
                        layer.name);
    case Kind::kSilu:
      return graph->Add(ops::kSilu, {x}, {}, layer.name);
    case Kind::kTanh:
      return graph->Add(ops::kTanh, {x}, {}, layer.name);
    case Kind::kSigmoid:
      return graph->Add(ops::kSigmoid, {x}, {}, layer.name);
    case Kind::kDropout:
      return BuildDropout(graph, inputs, layer, x);
    case Kind::kLayerNorm:
      return BuildLayerNorm(graph, inputs, layer, x);
    case Kind::kMaxPool:
    case Kind::kAvgPool:
      return graph->Add(layer.kind == Kind::kMaxPool ? ops::kMaxPool2d : ops::kAvgPool2d, {x},
                        WindowAttrs(layer), layer.name);
    case Kind::kGlobalAveragePool:
      return graph->Add(ops::kGlobalAveragePool, {x}, {}, layer.name);
    case Kind::kFlatten:
      return Flatten(graph, x);
    case Kind::kResidual: {
      const Value shortcut = BuildLayers(graph, inputs, layer.shortcut, x);
      const Value body = BuildLayers(graph, inputs, layer.body, x);
      if (!body.valid() || !shortcut.valid()) return Value();
      return graph->Add(ops::kAdd, {body, shortcut}, {}, layer.name);
    }
  }
  return Value();
}

absl::StatusOr<std::unique_ptr<Model>> LayersSpec::Make(const InputSpec& input) const {
  return Sequence::Make(sequence, input);
}

}  // namespace lockstep::engine
