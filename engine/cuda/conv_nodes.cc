// SPDX-License-Identifier: Apache-2.0
// conv2d and its gradients as products with patch matrices, in blocks of images that fit into the
// scratch; blocks are summed in order. Filters are brought into the patches' order in each run.
// What tensor cores can do without patches is conv_implicit.cc's, what cuDNN may do instead
// conv_cudnn.cc's.
#include <algorithm>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/conv_implicit.h"
#include "engine/cuda/conv_plan.h"
#include "engine/cuda/conv_tuning.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/window.h"

namespace lockstep::engine::cuda {
namespace {

// The scratch's parts.
struct Parts {
  Parts(const Operands& o, const ConvPlan& plan, const CudaContext& context)
      : filters(o.Scratch(context)),
        cast(o.Scratch(context, plan.filters_bytes)),
        matrix(o.Scratch(context, plan.filters_bytes + plan.cast_bytes)),
        result(o.Scratch(context, plan.filters_bytes + plan.cast_bytes + plan.matrix_bytes)) {}
  void* filters;
  void* cast;
  void* matrix;
  void* result;
};

// Products of whole blocks and of the last one; the same of every group.
class BlockProducts {
 public:
  // `rows` is the extent (0: m, 1: k) that a block's pixels are.
  static absl::StatusOr<BlockProducts> Make(const CudaTarget& target, const ConvPlan& plan,
                                            MatmulShape shape, bool pixels_are_k) {
    BlockProducts products;
    products.block_ = plan.block;
    for (const int64_t images : {plan.block, plan.g.images % plan.block}) {
      if (images == 0) continue;
      (pixels_are_k ? shape.k : shape.m) = images * plan.pixels();
      LS_ASSIGN_OR_RETURN(Product product, Product::Make(target, shape));
      products.products_.push_back(std::move(product));
    }
    return products;
  }
  const Product& Of(int64_t images) const {
    return products_[images == block_ ? 0 : products_.size() - 1];
  }

 private:
  std::vector<Product> products_;
  int64_t block_ = 1;
};

PatchArgs PatchesOf(const ConvPlan& plan, int64_t first, int64_t group) {
  PatchArgs args;
  const ConvGeometry& g = plan.g;
  args.window = WindowArgsOf(g.window, {plan.ImagesFrom(first), g.height, g.width, g.channels},
                             {0, g.out_height, g.out_width});
  args.first_image = first;
  args.first_channel = group * g.group_channels();
  args.group_channels = g.group_channels();
  args.pitch = plan.pitch();
  return args;
}

template <ConvPart kPart>
size_t Scratch(const Graph& graph, const Node& node) {
  return ConvPlan(graph, node, kPart).scratch_bytes();
}

// ---- forward ----

absl::StatusOr<CudaKernel> PrepareForward(const Graph& graph, const Node& node,
                                          const KernelOperands& operands,
                                          const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const ConvPlan plan(graph, node, ConvPart::kForward);
  if (CanBeImplicit(o, plan)) return PrepareImplicit(o, node, plan);
  const ConvGeometry& g = plan.g;
  const bool relu = node.attrs.String("activation") == "relu";
  const Type result = plan.in_fp32 ? Type::kF32 : TypeOf(node.outputs[0].dtype);
  MatmulShape shape;
  shape.n = g.group_filters();
  shape.k = plan.pitch();
  shape.b_transposed = true;
  shape.lda = shape.ldb = plan.pitch();
  shape.ldc = g.filters;
  shape.factors = plan.factors;
  shape.result = result;
  shape.alignment = plan.Alignment(std::min(o.InAlignment(0), o.OutAlignment()));
  LS_ASSIGN_OR_RETURN(const BlockProducts products,
                      BlockProducts::Make(target, plan, shape, false));
  return [o, plan, products, relu](const CudaContext& context) {
    const Parts parts(o, plan, context);
    const ConvGeometry& g = plan.g;
    FilterArgs filters = plan.padded_filters();
    filters.from = o.In(context, 1);
    filters.to = {parts.filters, plan.factors};
    Code code = o.kernels().filters(filters, context.stream);
    for (int64_t first = 0; code == 0 && first < g.images; first += plan.block) {
      const int64_t images = plan.ImagesFrom(first);
      const int64_t at = first * plan.pixels() * g.filters;
      const View y = From(o.Out(context), at);
      const View out = plan.in_fp32 ? View{parts.result, Type::kF32} : y;
      for (int64_t group = 0; code == 0 && group < g.groups; ++group) {
        View a = {parts.matrix, plan.factors};
        if (plan.direct) {
          a = From(o.In(context, 0), first * plan.pixels() * g.channels);
        } else {
          PatchArgs patches = PatchesOf(plan, first, group);
          patches.x = o.In(context, 0);
          patches.matrix = a;
          code = o.kernels().patches(patches, context.stream);
        }
        const int64_t filter = group * g.group_filters();
        const View b = From({parts.filters, plan.factors}, filter * plan.pitch());
        if (code == 0) {
          code = products.Of(images).Run(context, a.data, b.data, From(out, filter).data);
        }
      }
      if (code != 0 || (!relu && !o.has(2) && !plan.in_fp32)) continue;
      EpilogueArgs finish;
      finish.x = out;
      finish.bias = o.In(context, 2);
      finish.residual = From(o.In(context, 3), at);
      finish.out = y;
      finish.rows = images * plan.pixels();
      finish.columns = g.filters;
      finish.relu = relu;
      code = o.kernels().epilogue(finish, context.stream);
    }
    return code;
  };
}

// ---- backward ----

// dy in the factors' type.
Code BringDy(const Operands& o, const ConvPlan& plan, const Parts& parts,
             const CudaContext& context, View* dy) {
  *dy = o.In(context, 0);
  if (plan.cast_bytes == 0) return 0;
  PointwiseArgs cast;
  cast.a = *dy;
  cast.out = {parts.cast, Type::kF32};
  cast.count = o.input(0).elements();
  *dy = cast.out;
  return o.kernels().pointwise(cast, context.stream);
}

// The factors of dx: the filters in their place, and dy.
Code BringFactors(const Operands& o, const ConvPlan& plan, const Parts& parts,
                  const CudaContext& context, View* dy) {
  FilterArgs filters = plan.padded_filters();
  filters.from = o.In(context, 1);
  filters.to = {parts.filters, plan.factors};
  const Code code = o.kernels().filters(filters, context.stream);
  return code != 0 ? code : BringDy(o, plan, parts, context, dy);
}

// With 1 x 1 filters dx is one product.
absl::StatusOr<CudaKernel> PrepareDirectInput(const Operands& o, const ConvPlan& plan,
                                              const TensorType& dx, const CudaTarget& target) {
  const ConvGeometry& g = plan.g;
  GemmSpec spec;
  MatmulShape& shape = spec.shape;
  shape.n = g.channels;
  shape.k = g.filters;
  shape.lda = g.filters;
  shape.ldb = shape.ldc = g.channels;
  shape.factors = plan.factors;
  shape.result = plan.in_fp32 ? Type::kF32 : TypeOf(dx.dtype);
  shape.alignment = plan.Alignment(std::min(o.InAlignment(0), o.OutAlignment()));
  LS_ASSIGN_OR_RETURN(const BlockProducts products,
                      BlockProducts::Make(target, plan, shape, false));
  return [o, plan, products](const CudaContext& context) {
    const Parts parts(o, plan, context);
    const ConvGeometry& g = plan.g;
    View dy;
    Code code = BringFactors(o, plan, parts, context, &dy);
    for (int64_t first = 0; code == 0 && first < g.images; first += plan.block) {
      const int64_t images = plan.ImagesFrom(first);
      const int64_t pixel = first * plan.pixels();
      const View dx = From(o.Out(context), pixel * g.channels);
      const View out = plan.in_fp32 ? View{parts.result, Type::kF32} : dx;
      code = products.Of(images).Run(context, From(dy, pixel * g.filters).data, parts.filters,
                                     out.data);
      if (code != 0 || (!plan.in_fp32 && !o.has(2))) continue;
      EpilogueArgs finish;
      finish.x = out;
      finish.mask = From(o.In(context, 2), pixel * g.channels);
      finish.out = dx;
      finish.rows = images * plan.pixels();
      finish.columns = g.channels;
      code = o.kernels().epilogue(finish, context.stream);
    }
    return code;
  };
}

absl::StatusOr<CudaKernel> PrepareInput(const Graph& graph, const Node& node,
                                        const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const ConvPlan plan(graph, node, ConvPart::kInput);
  if (CanBeImplicit(o, plan)) return PrepareImplicit(o, node, plan);
  if (plan.direct) return PrepareDirectInput(o, plan, node.outputs[0], target);
  const ConvGeometry& g = plan.g;
  MatmulShape shape;
  shape.n = plan.pitch();
  shape.k = g.group_filters();
  shape.lda = g.filters;
  shape.ldb = shape.ldc = plan.pitch();
  shape.factors = plan.factors;
  shape.alignment = plan.Alignment(o.InAlignment(0));
  LS_ASSIGN_OR_RETURN(const BlockProducts products,
                      BlockProducts::Make(target, plan, shape, false));
  return [o, plan, products](const CudaContext& context) {
    const Parts parts(o, plan, context);
    const ConvGeometry& g = plan.g;
    View dy;
    Code code = BringFactors(o, plan, parts, context, &dy);
    for (int64_t first = 0; code == 0 && first < g.images; first += plan.block) {
      for (int64_t group = 0; code == 0 && group < g.groups; ++group) {
        const int64_t filter = group * g.group_filters();
        const View a = From(dy, first * plan.pixels() * g.filters + filter);
        const View b = From({parts.filters, plan.factors}, filter * plan.pitch());
        code = products.Of(plan.ImagesFrom(first)).Run(context, a.data, b.data, parts.matrix);
        if (code != 0) break;
        PatchArgs gather = PatchesOf(plan, first, group);
        gather.matrix = {parts.matrix, Type::kF32};
        gather.x = o.Out(context);
        gather.mask = o.In(context, 2);
        gather.gather = true;
        code = o.kernels().patches(gather, context.stream);
      }
    }
    return code;
  };
}

absl::StatusOr<CudaKernel> PrepareWeight(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const ConvPlan plan(graph, node, ConvPart::kWeight);
  if (CanBeImplicit(o, plan)) return PrepareImplicit(o, node, plan);
  const ConvGeometry& g = plan.g;
  MatmulShape shape;
  shape.m = g.group_filters();
  shape.n = plan.pitch();
  shape.a_transposed = true;
  shape.lda = g.filters;
  shape.ldb = shape.ldc = plan.pitch();
  shape.factors = plan.factors;
  shape.adds = true;
  shape.alignment = plan.Alignment(std::min(o.InAlignment(0), o.InAlignment(1)));
  LS_ASSIGN_OR_RETURN(const BlockProducts products, BlockProducts::Make(target, plan, shape, true));
  return [o, plan, products](const CudaContext& context) {
    const Parts parts(o, plan, context);
    const ConvGeometry& g = plan.g;
    View dy;
    Code code = BringDy(o, plan, parts, context, &dy);
    for (int64_t first = 0; code == 0 && first < g.images; first += plan.block) {
      for (int64_t group = 0; code == 0 && group < g.groups; ++group) {
        View b = {parts.matrix, plan.factors};
        if (plan.direct) {
          b = From(o.In(context, 1), first * plan.pixels() * g.channels);
        } else {
          PatchArgs patches = PatchesOf(plan, first, group);
          patches.x = o.In(context, 1);
          patches.matrix = b;
          code = o.kernels().patches(patches, context.stream);
        }
        const int64_t filter = group * g.group_filters();
        const View a = From(dy, first * plan.pixels() * g.filters + filter);
        const View sum = From({parts.filters, Type::kF32}, filter * plan.pitch());
        if (code == 0) {
          code = products.Of(plan.ImagesFrom(first))
                     .Run(context, a.data, b.data, sum.data, nullptr, first > 0);
        }
      }
    }
    if (code != 0) return code;
    FilterArgs filters = plan.padded_filters();
    filters.from = {parts.filters, Type::kF32};
    filters.to = o.Out(context);
    filters.back = true;
    filters.adds = o.Adds(context);
    return o.kernels().filters(filters, context.stream);
  };
}

// By our own kernels, or by cuDNN where it is quicker.
template <ConvPart kPart, auto kPrepareOwn>
absl::StatusOr<CudaKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CudaTarget& target) {
  LS_ASSIGN_OR_RETURN(CudaKernel own, kPrepareOwn(graph, node, operands, target));
  if (target.cudnn == nullptr) return own;
  return ChooseConvolution(target.cudnn, Operands(graph, node, operands, target), node,
                           ConvPlan(graph, node, kPart), target.tf32, std::move(own));
}

}  // namespace

const CudaKernelDef kConv2d = {Scratch<ConvPart::kForward>,
                               Prepare<ConvPart::kForward, PrepareForward>};
const CudaKernelDef kConv2dBackwardInput = {Scratch<ConvPart::kInput>,
                                            Prepare<ConvPart::kInput, PrepareInput>};
const CudaKernelDef kConv2dBackwardWeight = {Scratch<ConvPart::kWeight>,
                                             Prepare<ConvPart::kWeight, PrepareWeight>};

}  // namespace lockstep::engine::cuda
