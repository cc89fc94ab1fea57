// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/conv_cudnn.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/cuda/module.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kAlignment = 16;

using Convolution = std::shared_ptr<const CudnnConvolution>;

void* WorkspaceOf(const Operands& o, const ConvPlan& plan, const CudaContext& context) {
  const bool own = plan.scratch_bytes() - plan.filters_bytes > kCudaWorkspaceBytes;
  return own ? o.Scratch(context, plan.filters_bytes) : context.workspace;
}

// The filters in the library's order, at the scratch.
Code BringFilters(const Operands& o, const ConvPlan& plan, const CudaContext& context) {
  FilterArgs filters = plan.filters();
  filters.from = o.In(context, 1);
  filters.to = {o.Scratch(context), plan.factors};
  return o.kernels().filters(filters, context.stream);
}

CudaKernel Forward(const Operands& o, const ConvPlan& plan, const Convolution& convolution,
                   const CudnnAlgorithm& algorithm, bool relu) {
  return [=](const CudaContext& context) {
    Code code = BringFilters(o, plan, context);
    const View y = o.Out(context);
    if (code == 0) {
      code = convolution->Run(algorithm, o.In(context, 0).data, o.Scratch(context), y.data,
                              WorkspaceOf(o, plan, context));
    }
    if (code != 0 || (!relu && !o.has(2))) return code;
    EpilogueArgs finish;
    finish.x = finish.out = y;
    finish.bias = o.In(context, 2);
    finish.residual = o.In(context, 3);
    finish.rows = plan.g.images * plan.pixels();
    finish.columns = plan.g.filters;
    finish.relu = relu;
    return o.kernels().epilogue(finish, context.stream);
  };
}

CudaKernel Input(const Operands& o, const ConvPlan& plan, const Convolution& convolution,
                 const CudnnAlgorithm& algorithm) {
  return [=](const CudaContext& context) {
    Code code = BringFilters(o, plan, context);
    const View dx = o.Out(context);
    if (code == 0) {
      code = convolution->Run(algorithm, o.Scratch(context), o.In(context, 0).data, dx.data,
                              WorkspaceOf(o, plan, context));
    }
    if (code != 0 || !o.has(2)) return code;
    EpilogueArgs finish;
    finish.x = finish.out = dx;
    finish.mask = o.In(context, 2);
    finish.rows = plan.g.images * plan.g.height * plan.g.width;
    finish.columns = plan.g.channels;
    return o.kernels().epilogue(finish, context.stream);
  };
}

// The filters' gradient from the scratch to where it belongs.
Code TakeFilters(const Operands& o, const ConvPlan& plan, const CudaContext& context) {
  FilterArgs filters = plan.filters();
  filters.from = {o.Scratch(context), Type::kF32};
  filters.to = o.Out(context);
  filters.back = true;
  filters.adds = o.Adds(context);
  return o.kernels().filters(filters, context.stream);
}

CudaKernel Weight(const Operands& o, const ConvPlan& plan, const Convolution& convolution,
                  const CudnnAlgorithm& algorithm) {
  return [=](const CudaContext& context) {
    const Code code = convolution->Run(algorithm, o.In(context, 1).data, o.In(context, 0).data,
                                       o.Scratch(context), WorkspaceOf(o, plan, context));
    return code != 0 ? code : TakeFilters(o, plan, context);
  };
}

bool Fits(const TensorType& type, int alignment, Type wanted) {
  return TypeOf(type.dtype) == wanted && alignment >= kAlignment &&
         type.elements() <= std::numeric_limits<int32_t>::max();
}

}  // namespace

bool CanBeCudnn(const Operands& o, const ConvPlan& plan) {
  if (!Fits(o.input(0), o.InAlignment(0), plan.factors)) return false;
  if (plan.part == ConvPart::kWeight) {
    return plan.factors == Type::kF32 && Fits(o.input(1), o.InAlignment(1), plan.factors);
  }
  const bool added_to = plan.part == ConvPart::kForward && o.has(2);
  return Fits(o.output(), o.OutAlignment(), plan.factors) &&
         (plan.factors == Type::kF32 || !added_to);
}

bool CanBeFused(const Operands& o, const ConvPlan& plan) {
  if (plan.factors == Type::kF32 || plan.g.groups != 1 || plan.part == ConvPart::kInput) {
    return false;
  }
  if (!Fits(o.input(0), o.InAlignment(0), plan.factors)) return false;
  if (plan.part == ConvPart::kWeight) return Fits(o.input(1), o.InAlignment(1), plan.factors);
  return o.has(2) && o.InAlignment(2) >= kAlignment &&
         (!o.has(3) || Fits(o.input(3), o.InAlignment(3), plan.factors)) &&
         Fits(o.output(), o.OutAlignment(), plan.factors);
}

CudnnFusion FusionOf(const Operands& o, const Node& node, const ConvPlan& plan) {
  CudnnFusion fusion;
  if (plan.part != ConvPart::kForward) return fusion;
  if (o.has(2)) fusion.bias = TypeOf(o.input(2).dtype);
  fusion.residual = o.has(3);
  fusion.relu = node.attrs.String("activation") == "relu";
  return fusion;
}

size_t CudnnWorkspaceBytes(const ConvPlan& plan) {
  return std::max(plan.scratch_bytes() - plan.filters_bytes, kCudaWorkspaceBytes);
}

CudaKernel PrepareCudnn(const Operands& o, const Node& node, const ConvPlan& plan,
                        std::shared_ptr<const CudnnConvolution> convolution,
                        const CudnnAlgorithm& algorithm) {
  if (plan.part == ConvPart::kForward) {
    return Forward(o, plan, convolution, algorithm, node.attrs.String("activation") == "relu");
  }
  return plan.part == ConvPart::kInput ? Input(o, plan, convolution, algorithm)
                                       : Weight(o, plan, convolution, algorithm);
}

CudaKernel PrepareFused(const Operands& o, const ConvPlan& plan, const FusedWay& way) {
  return [=](const CudaContext& context) -> Code {
    const bool forward = plan.part == ConvPart::kForward;
    CudnnFusedConvolution::Operands own;
    own.filters = o.Scratch(context);
    if (forward) {
      const Code code = BringFilters(o, plan, context);
      if (code != 0) return code;
      own.images = o.In(context, 0).data;
      own.places = o.Out(context).data;
      own.bias = o.In(context, 2).data;
      own.residual = o.In(context, 3).data;
    } else {
      own.images = o.In(context, 1).data;
      own.places = o.In(context, 0).data;
    }
    const CudnnStatus status =
        way.convolution->Run(way.cudnn->handle(), *way.plan, own, WorkspaceOf(o, plan, context));
    if (status != 0) return kCudnnErrors + status;
    return forward ? 0 : TakeFilters(o, plan, context);
  };
}

}  // namespace lockstep::engine::cuda
