// SPDX-License-Identifier: Apache-2.0
// conv2d_max_pool and its gradients: directly, or in Winograd's tiles, which are the windows that
// are pooled; any other convolution is made whole in scratch by conv2d's own kernels and pooled
// from there.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "engine/cpu/image/direct_conv.h"
#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/image/winograd.h"
#include "engine/cpu/kernels.h"
#include "engine/graph/op.h"
#include "engine/ops/conv_method.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cpu {
namespace {

ConvGeometry GeometryOf(const TensorType& x, const TensorType& weight, const Attrs& attrs) {
  const absl::StatusOr<ConvGeometry> geometry = ConvOf(x, weight, attrs);
  LS_CHECK(geometry.ok()) << geometry.status();
  return *geometry;
}
ConvGeometry ForwardGeometry(const Graph& graph, const Node& node) {
  return GeometryOf(graph.type(node.inputs[0]), graph.type(node.inputs[1]), node.attrs);
}
ConvGeometry WeightGeometry(const Graph& graph, const Node& node) {
  return GeometryOf(graph.type(node.inputs[2]), node.outputs[0], node.attrs);
}

TensorType UnpooledOf(const ConvGeometry& g) {
  return {DType::kF32, {g.images, g.out_height, g.out_width, g.filters}};
}

// The four pixels of pooled pixel (row, column) of an image of the convolution's result.
template <typename T>
void PixelsOf(const ConvGeometry& g, int64_t row, int64_t column, T* image, T** pixels) {
  for (int64_t p = 0; p < 4; ++p) {
    pixels[p] = image + ((2 * row + p / 2) * g.out_width + 2 * column + p % 2) * g.filters;
  }
}

// A node of conv2d's family on scratch, with its own scratch behind that.
struct Inner {
  Graph graph;
  size_t result_bytes = 0;
  size_t scratch_bytes = 0;

  Inner(const OpDef& op, const std::vector<TensorType>& inputs, const Attrs& attrs,
        size_t own_bytes, const CpuTarget& target)
      : result_bytes((own_bytes + 63) / 64 * 64) {
    std::vector<Value> leaves;
    for (const TensorType& type : inputs) {
      leaves.push_back(graph.AddLeaf(ops::kInput, type, std::to_string(leaves.size())));
    }
    graph.Add(op, leaves, attrs);
    LS_CHECK(graph.status().ok()) << graph.status();
    kernel_ = &op == &ops::kConv2d ? &kConv2d : &kConv2dBackwardWeight;
    scratch_bytes = kernel_->scratch_bytes(graph, graph.nodes().back(), target);
  }
  std::unique_ptr<CpuKernel> Prepare(KernelOperands operands, const Storage& scratch,
                                     const CpuTarget& target) const {
    operands.scratch = {scratch.region, scratch.offset + result_bytes};
    operands.packed.reset();
    return kernel_->prepare(graph, graph.nodes().back(), operands, target);
  }

 private:
  const CpuKernelDef* kernel_;
};

// The convolution without activation, into scratch.
Inner InnerForward(const Graph& graph, const Node& node, const CpuTarget& target) {
  std::vector<TensorType> types;
  for (const Value& input : node.inputs) types.push_back(graph.type(input));
  Attrs attrs = node.attrs;
  attrs.Set("activation", std::string("none"));
  return Inner(ops::kConv2d, types, attrs, UnpooledOf(ForwardGeometry(graph, node)).bytes(),
               target);
}
// The weight gradient of what is unpooled into scratch.
Inner InnerWeight(const Graph& graph, const Node& node, const CpuTarget& target) {
  const TensorType dy = UnpooledOf(WeightGeometry(graph, node));
  return Inner(ops::kConv2dBackwardWeight, {dy, graph.type(node.inputs[2])}, node.attrs, dy.bytes(),
               target);
}

void Unpool(const ConvGeometry& g, const ImageSimd& simd, const float* dy, const int32_t* places,
            float* dx, ThreadPool* pool) {
  const int64_t rows = g.out_height / 2, columns = g.out_width / 2;
  const int64_t each = g.out_height * g.out_width * g.filters;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(g.images, index, pool->threads());
    for (int64_t image = begin; image < end; ++image) {
      float* const to = dx + image * each;
      if (g.out_height % 2 + g.out_width % 2 > 0) std::fill_n(to, each, 0.0f);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t at = ((image * rows + r) * columns + c) * g.filters;
          float* pixels[4];
          PixelsOf(g, r, c, to, pixels);
          simd.unpool(dy + at, places + at, g.filters, pixels);
        }
      }
    }
  });
}

class ForwardKernel : public CpuKernel {
 public:
  ForwardKernel(const ConvGeometry& g, const Node& node, const KernelOperands& operands)
      : geometry_(g), relu_(node.attrs.String("activation") == "relu"), operands_(operands) {}

 protected:
  float* Input(const RunContext& context, size_t i) const {
    return operands_.inputs.size() > i ? context.At<float>(operands_.inputs[i]) : nullptr;
  }
  float* Pooled(const RunContext& context) const { return context.At<float>(operands_.outputs[0]); }
  int32_t* Places(const RunContext& context) const {
    return context.At<int32_t>(operands_.outputs[1]);
  }

  const ConvGeometry geometry_;
  const bool relu_;
  const KernelOperands operands_;
};

class DirectKernel : public ForwardKernel {
 public:
  DirectKernel(const ConvGeometry& g, const Node& node, const KernelOperands& operands,
               const CpuTarget& target)
      : ForwardKernel(g, node, operands), conv_(g, target.isa, target.threads) {}

  void Run(const RunContext& context) const override {
    conv_.RunPooled(Input(context, 0), Input(context, 1), Input(context, 2), relu_, Pooled(context),
                    Places(context), context.At<float>(operands_.scratch), context.pool);
  }

 private:
  const DirectConv conv_;
};

class WinogradKernel : public ForwardKernel {
 public:
  WinogradKernel(const ConvGeometry& g, const Node& node, const KernelOperands& operands,
                 const CpuTarget& target)
      : ForwardKernel(g, node, operands),
        product_(WinogradForward(g), target.isa, target.threads) {}

  void Run(const RunContext& context) const override {
    TileEpilogue epilogue;
    epilogue.bias = Input(context, 2);
    epilogue.relu = relu_;
    auto* const u = context.At<float>(operands_.scratch);
    if (!context.continues) {
      product_.TransformFilters(Input(context, 1), {9, geometry_.channels * 9, false}, u,
                                context.pool);
    }
    product_.RunPooled(Input(context, 0), u, epilogue, Pooled(context), Places(context),
                       u + product_.filter_bytes() / sizeof(float), context.pool);
  }

 private:
  const WinogradProduct product_;
};

class PoolingKernel : public ForwardKernel {
 public:
  PoolingKernel(const ConvGeometry& g, const Graph& graph, const Node& node,
                const KernelOperands& operands, const CpuTarget& target)
      : ForwardKernel(g, node, operands), simd_(ImageSimdFor(target.isa)) {
    KernelOperands inner = operands;
    inner.outputs = {operands.scratch};
    conv_ = InnerForward(graph, node, target).Prepare(inner, operands.scratch, target);
  }

  void Run(const RunContext& context) const override {
    conv_->Run(context);
    const ConvGeometry& g = geometry_;
    const float* const x = context.At<float>(operands_.scratch);
    const int64_t rows = g.out_height / 2, columns = g.out_width / 2;
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(g.images, index, context.pool->threads());
      for (int64_t image = begin; image < end; ++image) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            const int64_t at = ((image * rows + r) * columns + c) * g.filters;
            const float* pixels[4];
            PixelsOf(g, r, c, x + image * g.out_height * g.out_width * g.filters, pixels);
            simd_.largest_place(pixels, g.filters, relu_, Pooled(context) + at,
                                Places(context) + at);
          }
        }
      }
    });
  }

 private:
  const ImageSimd& simd_;
  std::unique_ptr<CpuKernel> conv_;
};

size_t ForwardScratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const ConvGeometry g = ForwardGeometry(graph, node);
  if (IsForDirect(g)) return DirectConv(g, target.isa, target.threads).scratch_bytes();
  if (IsForWinograd(g)) {
    const WinogradProduct product(WinogradForward(g), target.isa, target.threads);
    return product.filter_bytes() + product.scratch_bytes();
  }
  const Inner inner = InnerForward(graph, node, target);
  return inner.result_bytes + inner.scratch_bytes;
}

std::unique_ptr<CpuKernel> PrepareForward(const Graph& graph, const Node& node,
                                          const KernelOperands& operands, const CpuTarget& target) {
  const ConvGeometry g = ForwardGeometry(graph, node);
  if (IsForDirect(g)) return std::make_unique<DirectKernel>(g, node, operands, target);
  if (IsForWinograd(g)) return std::make_unique<WinogradKernel>(g, node, operands, target);
  return std::make_unique<PoolingKernel>(g, graph, node, operands, target);
}

// (dy, places) -> dx
class UnpoolKernel : public CpuKernel {
 public:
  UnpoolKernel(const Node& node, const KernelOperands& operands, const CpuTarget& target)
      : simd_(ImageSimdFor(target.isa)), operands_(operands) {
    const Shape& dx = node.outputs[0].shape;
    geometry_.images = dx[0];
    geometry_.out_height = dx[1];
    geometry_.out_width = dx[2];
    geometry_.filters = dx[3];
  }

  void Run(const RunContext& context) const override {
    Unpool(geometry_, simd_, context.At<float>(operands_.inputs[0]),
           context.At<int32_t>(operands_.inputs[1]), context.At<float>(operands_.outputs[0]),
           context.pool);
  }

 private:
  ConvGeometry geometry_;
  const ImageSimd& simd_;
  const KernelOperands operands_;
};

std::unique_ptr<CpuKernel> PrepareUnpool(const Graph&, const Node& node,
                                         const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<UnpoolKernel>(node, operands, target);
}

// (dy, places, x) -> dw
class DirectWeightKernel : public CpuKernel {
 public:
  DirectWeightKernel(const ConvGeometry& g, const KernelOperands& operands, const CpuTarget& target)
      : conv_(g, target.isa, target.threads), operands_(operands) {}

  void Run(const RunContext& context) const override {
    const Storage& out = operands_.outputs[0];
    conv_.RunWeightGradient(
        context.At<float>(operands_.inputs[0]), context.At<int32_t>(operands_.inputs[1]),
        context.At<float>(operands_.inputs[2]), context.Adds(out), context.At<float>(out),
        context.At<float>(operands_.scratch), context.pool);
  }

 private:
  const DirectConv conv_;
  const KernelOperands operands_;
};

class UnpooledWeightKernel : public CpuKernel {
 public:
  UnpooledWeightKernel(const ConvGeometry& g, const Graph& graph, const Node& node,
                       const KernelOperands& operands, const CpuTarget& target)
      : geometry_(g), simd_(ImageSimdFor(target.isa)), operands_(operands) {
    KernelOperands inner = operands;
    inner.inputs = {operands.scratch, operands.inputs[2]};
    gradient_ = InnerWeight(graph, node, target).Prepare(inner, operands.scratch, target);
  }

  void Run(const RunContext& context) const override {
    Unpool(geometry_, simd_, context.At<float>(operands_.inputs[0]),
           context.At<int32_t>(operands_.inputs[1]), context.At<float>(operands_.scratch),
           context.pool);
    gradient_->Run(context);
  }

 private:
  const ConvGeometry geometry_;
  const ImageSimd& simd_;
  const KernelOperands operands_;
  std::unique_ptr<CpuKernel> gradient_;
};

size_t WeightScratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const ConvGeometry g = WeightGeometry(graph, node);
  if (IsForDirect(g)) return DirectConv(g, target.isa, target.threads).scratch_bytes();
  const Inner inner = InnerWeight(graph, node, target);
  return inner.result_bytes + inner.scratch_bytes;
}

std::unique_ptr<CpuKernel> PrepareWeight(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CpuTarget& target) {
  const ConvGeometry g = WeightGeometry(graph, node);
  if (IsForDirect(g)) return std::make_unique<DirectWeightKernel>(g, operands, target);
  return std::make_unique<UnpooledWeightKernel>(g, graph, node, operands, target);
}

}  // namespace

const CpuKernelDef kConv2dMaxPool = {
    .scratch_bytes = ForwardScratch, .prepare = PrepareForward, .op_class = OpClass::kConvolutions};
const CpuKernelDef kMaxUnpool2d = {.prepare = PrepareUnpool, .op_class = OpClass::kImages};
const CpuKernelDef kConv2dMaxPoolBackwardWeight = {
    .scratch_bytes = WeightScratch, .prepare = PrepareWeight, .op_class = OpClass::kConvolutions};

}  // namespace lockstep::engine::cpu
