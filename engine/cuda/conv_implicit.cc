// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/conv_implicit.h"

#include "engine/cuda/window.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kChunkBytes = 16;
constexpr int kPairBytes = 4;

// The convolution's window over its images.
WindowArgs WindowOfImages(const ConvGeometry& g) {
  return WindowArgsOf(g.window, {g.images, g.height, g.width, g.channels},
                      {0, g.out_height, g.out_width});
}
// The same, turned round over dy.
WindowArgs WindowOfGradients(const ConvGeometry& g) {
  return WindowArgsOf(g.window, {g.images, g.out_height, g.out_width, g.filters},
                      {0, g.height, g.width});
}

CudaKernel Forward(const Operands& o, const Node& node, const ConvPlan& plan) {
  ImplicitArgs args;
  args.window = WindowOfImages(plan.g);
  args.outputs = plan.g.filters;
  args.relu = node.attrs.String("activation") == "relu";
  return [o, plan, args](const CudaContext& context) {
    FilterArgs filters = plan.filters();
    filters.from = o.In(context, 1);
    filters.to = {o.Scratch(context), plan.factors};
    const Code code = o.kernels().filters(filters, context.stream);
    if (code != 0) return code;
    ImplicitArgs own = args;
    own.x = o.In(context, 0);
    own.filters = filters.to;
    own.bias = o.In(context, 2);
    own.residual = o.In(context, 3);
    own.y = o.Out(context);
    return o.kernels().implicit(own, context.stream);
  };
}

CudaKernel Input(const Operands& o, const ConvPlan& plan) {
  ImplicitArgs args;
  args.window = WindowOfGradients(plan.g);
  args.outputs = plan.g.channels;
  args.turned = true;
  return [o, plan, args](const CudaContext& context) {
    FilterArgs filters = plan.filters();
    filters.from = o.In(context, 1);
    filters.to = {o.Scratch(context), plan.factors};
    filters.turned = true;
    const Code code = o.kernels().filters(filters, context.stream);
    if (code != 0) return code;
    ImplicitArgs own = args;
    own.x = o.In(context, 0);
    own.filters = filters.to;
    own.mask = o.In(context, 2);
    own.y = o.Out(context);
    return o.kernels().implicit(own, context.stream);
  };
}

CudaKernel Weight(const Operands& o, const ConvPlan& plan) {
  ImplicitWeightArgs args;
  args.window = WindowOfImages(plan.g);
  args.filters = plan.g.filters;
  args.parts = plan.parts;
  return [o, plan, args](const CudaContext& context) {
    ImplicitWeightArgs own = args;
    own.dy = o.In(context, 0);
    own.x = o.In(context, 1);
    own.partial = o.Scratch<float>(context);
    const Code code = o.kernels().implicit_weight(own, context.stream);
    if (code != 0) return code;
    FilterArgs filters = plan.filters();
    filters.from = {own.partial, Type::kF32};
    filters.to = o.Out(context);
    filters.back = true;
    filters.adds = o.Adds(context);
    return o.kernels().filters(filters, context.stream);
  };
}

}  // namespace

bool CanBeImplicit(const Operands& o, const ConvPlan& plan) {
  if (!plan.implicit) return false;
  if (plan.part == ConvPart::kWeight) {
    return o.InAlignment(0) >= kChunkBytes && o.InAlignment(1) >= kChunkBytes;
  }
  return o.InAlignment(0) >= kChunkBytes && o.OutAlignment() >= kPairBytes;
}

CudaKernel PrepareImplicit(const Operands& o, const Node& node, const ConvPlan& plan) {
  if (plan.part == ConvPart::kForward) return Forward(o, node, plan);
  return plan.part == ConvPart::kInput ? Input(o, plan) : Weight(o, plan);
}

}  // namespace lockstep::engine::cuda
