// SPDX-License-Identifier: Apache-2.0
// conv2d and its gradients as products with patch matrices, or by Winograd's algorithm where the
// shape is for it: of bf16 too, which then comes in fp32 (converting_kernel.h). The filters are
// brought into the product's order in every run, since training changes them in every step, or once
// where they stay the same (CpuKernel::Pack).
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "common/check.h"
#include "engine/cpu/image/conv_filters.h"
#include "engine/cpu/image/conv_product.h"
#include "engine/cpu/image/winograd.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/conv_method.h"

namespace lockstep::engine::cpu {
namespace {

ConvGeometry GeometryOf(TensorType x, TensorType weight, const Attrs& attrs) {
  x.dtype = weight.dtype = DType::kF32;  // it asks for shapes
  const absl::StatusOr<ConvGeometry> geometry = ConvOf(x, weight, attrs);
  LS_CHECK(geometry.ok()) << geometry.status();
  return *geometry;
}

bool FactorsAreBf16(const Graph& graph, const Node& node) {
  return graph.type(node.inputs[0]).dtype == DType::kBF16 &&
         graph.type(node.inputs[1]).dtype == DType::kBF16;
}

// `each`: channels of an element, 2 of pairs.
PatchShape ForwardPatches(const ConvGeometry& g, int64_t group, int64_t each) {
  PatchShape shape;
  shape.height = g.height;
  shape.width = g.width;
  shape.channels = g.channels / each;
  shape.rows = g.out_height;
  shape.columns = g.out_width;
  shape.row_step = g.window.stride[0];
  shape.column_step = g.window.stride[1];
  for (int64_t i = 0; i < g.window.kernel[0]; ++i) {
    shape.row_taps.push_back(i * g.window.dilation[0] - g.window.padding[0]);
  }
  for (int64_t j = 0; j < g.window.kernel[1]; ++j) {
    shape.column_taps.push_back(j * g.window.dilation[1] - g.window.padding[1]);
  }
  shape.first_channel = group * g.group_channels() / each;
  shape.group_channels = g.group_channels() / each;
  return shape;
}

// One product of a kernel: which filters it takes in which order, and where its result lies.
struct Part {
  PatchProduct product;
  std::vector<Tap> taps;
  int64_t group;
  size_t panels;  // floats, from the start of all panels
};

// The layout of the scratch and the parts of a forward or input gradient kernel.
class ConvParts {
 public:
  void Add(const PatchShape& patches, const PixelGrid& grid, std::vector<Tap> taps, int64_t group,
           int64_t images, int64_t columns, int64_t y_stride, bool pairs, const CpuTarget& target) {
    const Factors factors = FactorsOf(pairs, target);
    PatchProduct product(patches, grid, images, columns, y_stride, factors, target.isa,
                         target.threads);
    const int64_t each = factors == Factors::kWidenedPairs ? 2 : 1;
    const int64_t floats = PatchProduct::PanelFloats(each * product.depth(), columns, target.isa);
    scratch_ = std::max(scratch_, product.scratch_bytes() / sizeof(float));
    parts_.push_back({std::move(product), std::move(taps), group, panels_});
    panels_ += static_cast<size_t>((floats + 15) / 16 * 16);
  }
  const std::vector<Part>& parts() const { return parts_; }
  size_t panel_floats() const { return panels_; }
  // Of the products.
  size_t scratch_bytes() const { return scratch_ * sizeof(float); }

 private:
  std::vector<Part> parts_;
  size_t panels_ = 0;
  size_t scratch_ = 0;
};

ConvParts ForwardParts(const ConvGeometry& g, bool pairs, const CpuTarget& target) {
  ConvParts parts;
  const PixelGrid grid{.rows = g.out_height,
                       .columns = g.out_width,
                       .image_rows = g.out_height,
                       .image_columns = g.out_width};
  std::vector<Tap> taps;
  for (int64_t i = 0; i < g.window.kernel[0]; ++i) {
    for (int64_t j = 0; j < g.window.kernel[1]; ++j) taps.push_back({i, j});
  }
  for (int64_t group = 0; group < g.groups; ++group) {
    parts.Add(ForwardPatches(g, group, pairs ? 2 : 1), grid, taps, group, g.images,
              g.group_filters(), g.filters, pairs, target);
  }
  return parts;
}

// The taps that reach the pixels `phase` mod stride of one axis, by ascending place in dy, and
// these places: pixel phase + stride * i takes dy at i + (phase + padding - tap * dilation) /
// stride.
void PhaseTaps(const Window& window, int axis, int64_t phase, std::vector<int64_t>* taps,
               std::vector<int64_t>* places) {
  for (int64_t tap = window.kernel[axis] - 1; tap >= 0; --tap) {
    const int64_t at = phase + window.padding[axis] - tap * window.dilation[axis];
    if (at % window.stride[axis] != 0) continue;
    taps->push_back(tap);
    places->push_back(at / window.stride[axis]);
  }
}

// Every phase of the stride is a convolution of dy of stride 1 with the taps that reach it.
ConvParts BackwardParts(const ConvGeometry& g, bool pairs, const CpuTarget& target) {
  const int64_t each = pairs ? 2 : 1;
  ConvParts parts;
  const Window& window = g.window;
  for (int64_t a = 0; a < std::min(window.stride[0], g.height); ++a) {
    for (int64_t b = 0; b < std::min(window.stride[1], g.width); ++b) {
      std::vector<int64_t> rows, columns;
      PatchShape shape;
      PhaseTaps(window, 0, a, &rows, &shape.row_taps);
      PhaseTaps(window, 1, b, &columns, &shape.column_taps);
      std::vector<Tap> taps;
      for (const int64_t row : rows) {
        for (const int64_t column : columns) taps.push_back({row, column});
      }
      shape.height = g.out_height;
      shape.width = g.out_width;
      shape.channels = g.filters / each;
      shape.rows = (g.height - a + window.stride[0] - 1) / window.stride[0];
      shape.columns = (g.width - b + window.stride[1] - 1) / window.stride[1];
      shape.group_channels = g.group_filters() / each;
      const PixelGrid grid{.rows = shape.rows,
                           .columns = shape.columns,
                           .image_rows = g.height,
                           .image_columns = g.width,
                           .first_row = a,
                           .first_column = b,
                           .row_step = window.stride[0],
                           .column_step = window.stride[1]};
      for (int64_t group = 0; group < g.groups; ++group) {
        shape.first_channel = group * g.group_filters() / each;
        parts.Add(shape, grid, taps, group, g.images, g.group_channels(), g.channels, pairs,
                  target);
      }
    }
  }
  return parts;
}

// Forward and input gradient: the same products with the filters in another order.
class ConvKernel : public CpuKernel {
 public:
  ConvKernel(const Graph& graph, const Node& node, const ConvGeometry& geometry, ConvParts parts,
             bool backward, const KernelOperands& operands, const CpuTarget& target)
      : geometry_(geometry),
        parts_(std::move(parts)),
        backward_(backward),
        operands_(operands),
        relu_(!backward && node.attrs.String("activation") == "relu"),
        y_bf16_(node.outputs[0].dtype == DType::kBF16),
        pairs_(FactorsAreBf16(graph, node)),
        widens_(FactorsOf(pairs_, target) == Factors::kWidenedPairs),
        simd_(SimdFor(target.isa)),
        half_(HalfKernelsFor(target.isa)) {
    for (const Value& input : node.inputs) {
      input_bf16_.push_back(graph.type(input).dtype == DType::kBF16);
    }
    const int64_t taps = geometry.taps(), row = geometry.group_channels() * taps;
    const int64_t in = geometry.group_channels(), out = geometry.group_filters();
    order_ = backward ? FilterOrder{out, in, row, taps, out * row}
                      : FilterOrder{in, out, taps, row, out * row};
  }

  // The packed filters, a bias that is bf16 in fp32, and the products' own.
  size_t scratch_bytes() const {
    return (parts_.panel_floats() + BiasFloats()) * sizeof(float) + parts_.scratch_bytes();
  }

  void Run(const RunContext& context) const override {
    const float* x = context.At<float>(operands_.inputs[0]);
    const bool packed = operands_.packed.has_value();
    float* const scratch = context.At<float>(operands_.scratch);
    float* const panels = packed ? context.At<float>(*operands_.packed) : scratch;
    float* const bias = scratch + (packed ? 0 : parts_.panel_floats());
    const ImageValues y{context.At<void>(operands_.outputs[0]), y_bf16_};
    ImageEpilogue all;
    all.relu = relu_;
    if (backward_) {
      all.mask = Input(context, 2);
    } else {
      all.bias = Bias(context, bias);
      all.residual = Input(context, 3);
    }
    for (const Part& part : parts_.parts()) {
      if (!packed) PackPart(context, part, panels);
      const int64_t first = part.group * order_.outputs;
      ImageEpilogue epilogue = all;
      if (all.bias != nullptr) epilogue.bias += first;
      if (!all.mask.empty()) epilogue.mask = all.mask.From(first);
      if (!all.residual.empty()) epilogue.residual = all.residual.From(first);
      part.product.Run(x, panels + part.panels, y.From(first), epilogue, bias + BiasFloats(),
                       context.pool);
    }
  }

  void Pack(const RunContext& context) const override {
    for (const Part& part : parts_.parts()) {
      PackPart(context, part, context.At<float>(*operands_.packed));
    }
  }

 private:
  void PackPart(const RunContext& context, const Part& part, float* panels) const {
    const int64_t width = simd_.tile_columns;
    const int64_t floats = part.product.depth() * width;  // of a panel, before it is widened
    const int64_t count = (order_.outputs + width - 1) / width;
    float* const to = panels + part.panels;
    const auto pack = [&](const auto* weight, int64_t inputs) {
      PackFilters(part.taps, geometry_.window.kernel[1], order_, weight + part.group * order_.group,
                  inputs, width, widens_ ? to + floats * count : to, context.pool);
    };
    const Storage& weight = operands_.inputs[1];
    if (pairs_) {
      pack(context.At<uint16_t>(weight), order_.inputs / 2);
      if (widens_) simd_.split_pairs(part.product.depth() * count, width, to);
    } else {
      pack(context.At<float>(weight), order_.inputs);
    }
  }
  ImageValues Input(const RunContext& context, size_t i) const {
    if (operands_.inputs.size() <= i) return {};
    return {context.At<void>(operands_.inputs[i]), input_bf16_[i]};
  }
  size_t BiasFloats() const {
    const bool copied = !backward_ && input_bf16_.size() >= 3 && input_bf16_[2];
    return copied ? static_cast<size_t>((geometry_.filters + 15) / 16 * 16) : 0;
  }
  const float* Bias(const RunContext& context, float* copy) const {
    const ImageValues bias = Input(context, 2);
    if (!bias.bf16) return bias.fp32();
    half_.widen_bf16(bias.halves(), geometry_.filters, copy);
    return copy;
  }

  const ConvGeometry geometry_;
  const ConvParts parts_;
  const bool backward_;
  const KernelOperands operands_;
  const bool relu_;
  const bool y_bf16_;
  const bool pairs_;
  const bool widens_;
  const SimdKernels& simd_;
  const HalfKernels& half_;
  std::vector<bool> input_bf16_;
  FilterOrder order_{};
};

class BackwardWeightKernel : public CpuKernel {
 public:
  BackwardWeightKernel(const ConvGeometry& g, bool pairs, const KernelOperands& operands,
                       const CpuTarget& target)
      : geometry_(g), value_bytes_(pairs ? 2 : 4), operands_(operands) {
    for (int64_t group = 0; group < g.groups; ++group) {
      products_.emplace_back(ForwardPatches(g, group, pairs ? 2 : 1), g.images, g.group_filters(),
                             g.filters, FactorsOf(pairs, target), target.isa, target.threads);
    }
  }
  size_t scratch_bytes() const { return products_[0].scratch_bytes(); }

  void Run(const RunContext& context) const override {
    const ConvGeometry& g = geometry_;
    const Storage& out = operands_.outputs[0];
    const bool add = context.Adds(out);
    const int64_t taps = g.taps(), inputs = g.group_channels();
    for (int64_t group = 0; group < g.groups; ++group) {
      const PatchOuterProduct& product = products_[static_cast<size_t>(group)];
      const auto* dy =
          context.At<std::byte>(operands_.inputs[0]) + group * g.group_filters() * value_bytes_;
      const float* sum = product.Run(dy, context.At<void>(operands_.inputs[1]),
                                     context.At<float>(operands_.scratch), context.pool);
      float* dw = context.At<float>(out) + group * g.group_filters() * inputs * taps;
      // From [filter][tap][input] to [filter][input][tap].
      context.pool->Run([&](int index) {
        const auto [begin, end] = PartOf(g.group_filters(), index, context.pool->threads());
        for (int64_t o = begin; o < end; ++o) {
          const float* from = sum + o * product.sum_stride();
          float* to = dw + o * inputs * taps;
          for (int64_t i = 0; i < inputs; ++i) {
            for (int64_t t = 0; t < taps; ++t, ++to) {
              *to = add ? *to + from[t * inputs + i] : from[t * inputs + i];
            }
          }
        }
      });
    }
  }

 private:
  const ConvGeometry geometry_;
  const int64_t value_bytes_;
  const KernelOperands operands_;
  std::vector<PatchOuterProduct> products_;
};

// Forward and input gradient, as ConvKernel.
class WinogradKernel : public CpuKernel {
 public:
  WinogradKernel(const ConvGeometry& g, bool backward, const KernelOperands& operands, bool relu,
                 const CpuTarget& target)
      : product_(backward ? WinogradBackward(g) : WinogradForward(g), target.isa, target.threads),
        order_(backward ? WinogradFilterOrder{g.channels * 9, 9, true}
                        : WinogradFilterOrder{9, g.channels * 9, false}),
        backward_(backward),
        operands_(operands),
        relu_(relu) {}
  // Of the transformed filters, which the scratch begins with; of all scratch.
  size_t filter_bytes() const { return product_.filter_bytes(); }
  size_t scratch_bytes() const { return product_.filter_bytes() + product_.scratch_bytes(); }

  void Run(const RunContext& context) const override {
    TileEpilogue epilogue;
    epilogue.relu = relu_;
    if (operands_.inputs.size() >= 3) {
      (backward_ ? epilogue.mask : epilogue.bias) = context.At<float>(operands_.inputs[2]);
    }
    if (operands_.inputs.size() == 4) {
      epilogue.residual = context.At<float>(operands_.inputs[3]);
    }
    const bool packed = operands_.packed.has_value();
    auto* u = context.At<float>(packed ? *operands_.packed : operands_.scratch);
    auto* scratch =
        packed ? context.At<float>(operands_.scratch) : u + product_.filter_bytes() / sizeof(float);
    if (!packed && !context.continues) {
      product_.TransformFilters(context.At<float>(operands_.inputs[1]), order_, u, context.pool);
    }
    product_.Run(context.At<float>(operands_.inputs[0]), u, epilogue,
                 context.At<float>(operands_.outputs[0]), scratch, context.pool);
  }

  void Pack(const RunContext& context) const override {
    product_.TransformFilters(context.At<float>(operands_.inputs[1]), order_,
                              context.At<float>(*operands_.packed), context.pool);
  }

 private:
  const WinogradProduct product_;
  const WinogradFilterOrder order_;
  const bool backward_;
  const KernelOperands operands_;
  const bool relu_;
};

class WinogradWeightKernel : public CpuKernel {
 public:
  WinogradWeightKernel(const ConvGeometry& g, const KernelOperands& operands,
                       const CpuTarget& target)
      : gradient_(WinogradForward(g), target.isa, target.threads), operands_(operands) {}
  size_t scratch_bytes() const { return gradient_.scratch_bytes(); }

  void Run(const RunContext& context) const override {
    const Storage& out = operands_.outputs[0];
    gradient_.Run(context.At<float>(operands_.inputs[0]), context.At<float>(operands_.inputs[1]),
                  context.Adds(out), context.At<float>(out), context.At<float>(operands_.scratch),
                  context.pool);
  }

 private:
  const WinogradWeightGradient gradient_;
  const KernelOperands operands_;
};

ConvGeometry ForwardGeometry(const Graph& graph, const Node& node) {
  return GeometryOf(graph.type(node.inputs[0]), graph.type(node.inputs[1]), node.attrs);
}
ConvGeometry InputGeometry(const Graph& graph, const Node& node) {
  return GeometryOf(node.outputs[0], graph.type(node.inputs[1]), node.attrs);
}
ConvGeometry WeightGeometry(const Graph& graph, const Node& node) {
  return GeometryOf(graph.type(node.inputs[1]), node.outputs[0], node.attrs);
}

// The kernel of patches, forward or of the input gradient.
ConvKernel MakeForward(const Graph& graph, const Node& node, const KernelOperands& operands,
                       const CpuTarget& target) {
  const ConvGeometry g = ForwardGeometry(graph, node);
  ConvParts parts = ForwardParts(g, FactorsAreBf16(graph, node), target);
  return ConvKernel(graph, node, g, std::move(parts), false, operands, target);
}
ConvKernel MakeInput(const Graph& graph, const Node& node, const KernelOperands& operands,
                     const CpuTarget& target) {
  const ConvGeometry g = InputGeometry(graph, node);
  ConvParts parts = BackwardParts(g, FactorsAreBf16(graph, node), target);
  return ConvKernel(graph, node, g, std::move(parts), true, operands, target);
}

size_t ForwardScratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const ConvGeometry g = ForwardGeometry(graph, node);
  return IsForWinograd(g) ? WinogradKernel(g, false, {}, false, target).scratch_bytes()
                          : MakeForward(graph, node, {}, target).scratch_bytes();
}
// Of the filters in the order of the product.
size_t ForwardPacked(const Graph& graph, const Node& node, const CpuTarget& target) {
  const ConvGeometry g = ForwardGeometry(graph, node);
  if (IsForWinograd(g)) return WinogradKernel(g, false, {}, false, target).filter_bytes();
  return ForwardParts(g, FactorsAreBf16(graph, node), target).panel_floats() * sizeof(float);
}
size_t InputScratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const ConvGeometry g = InputGeometry(graph, node);
  return IsForWinograd(g) ? WinogradKernel(g, true, {}, false, target).scratch_bytes()
                          : MakeInput(graph, node, {}, target).scratch_bytes();
}
size_t WeightScratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const ConvGeometry g = WeightGeometry(graph, node);
  const bool pairs = FactorsAreBf16(graph, node);
  return IsForWinograd(g) ? WinogradWeightKernel(g, {}, target).scratch_bytes()
                          : BackwardWeightKernel(g, pairs, {}, target).scratch_bytes();
}

std::unique_ptr<CpuKernel> PrepareForward(const Graph& graph, const Node& node,
                                          const KernelOperands& operands, const CpuTarget& target) {
  const ConvGeometry g = ForwardGeometry(graph, node);
  if (IsForWinograd(g)) {
    const bool relu = node.attrs.String("activation") == "relu";
    return std::make_unique<WinogradKernel>(g, false, operands, relu, target);
  }
  return std::make_unique<ConvKernel>(MakeForward(graph, node, operands, target));
}
std::unique_ptr<CpuKernel> PrepareInput(const Graph& graph, const Node& node,
                                        const KernelOperands& operands, const CpuTarget& target) {
  const ConvGeometry g = InputGeometry(graph, node);
  if (IsForWinograd(g)) {
    return std::make_unique<WinogradKernel>(g, true, operands, false, target);
  }
  return std::make_unique<ConvKernel>(MakeInput(graph, node, operands, target));
}
std::unique_ptr<CpuKernel> PrepareWeight(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CpuTarget& target) {
  const ConvGeometry g = WeightGeometry(graph, node);
  if (IsForWinograd(g)) {
    return std::make_unique<WinogradWeightKernel>(g, operands, target);
  }
  return std::make_unique<BackwardWeightKernel>(g, FactorsAreBf16(graph, node), operands, target);
}

// Elements are pairs of channels, or of pixels. By the shape alone, as what is computed is.
bool ForwardTakesBf16(const Graph& graph, const Node& node, const CpuTarget&) {
  if (!FactorsAreBf16(graph, node)) return false;
  const ConvGeometry g = ForwardGeometry(graph, node);
  return !IsForWinograd(g) && g.group_channels() % 2 == 0;
}
bool InputTakesBf16(const Graph& graph, const Node& node, const CpuTarget&) {
  if (!FactorsAreBf16(graph, node)) return false;
  const ConvGeometry g = InputGeometry(graph, node);
  return !IsForWinograd(g) && g.group_filters() % 2 == 0;
}
bool WeightTakesBf16(const Graph& graph, const Node& node, const CpuTarget&) {
  if (!FactorsAreBf16(graph, node)) return false;
  const ConvGeometry g = WeightGeometry(graph, node);
  return !IsForWinograd(g) && g.group_channels() % 2 == 0 &&
         g.images * g.out_height * g.out_width % 2 == 0;
}

}  // namespace

const CpuKernelDef kConv2d = {.scratch_bytes = ForwardScratch,
                              .prepare = PrepareForward,
                              .packed_input = 1,
                              .packed_bytes = ForwardPacked,
                              .takes_half = ForwardTakesBf16,
                              .op_class = OpClass::kConvolutions};
const CpuKernelDef kConv2dBackwardInput = {.scratch_bytes = InputScratch,
                                           .prepare = PrepareInput,
                                           .takes_half = InputTakesBf16,
                                           .op_class = OpClass::kConvolutions};
const CpuKernelDef kConv2dBackwardWeight = {.scratch_bytes = WeightScratch,
                                            .prepare = PrepareWeight,
                                            .takes_half = WeightTakesBf16,
                                            .op_class = OpClass::kConvolutions};

}  // namespace lockstep::engine::cpu
