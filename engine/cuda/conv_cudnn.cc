// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/conv_cudnn.h"

#include <algorithm>
#include <limits>
#include <utility>

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

CudaKernel Weight(const Operands& o, const ConvPlan& plan, const Convolution& convolution,
                  const CudnnAlgorithm& algorithm) {
  return [=](const CudaContext& context) {
    const Code code = convolution->Run(algorithm, o.In(context, 1).data, o.In(context, 0).data,
                                       o.Scratch(context), WorkspaceOf(o, plan, context));
    if (code != 0) return code;
    FilterArgs filters = plan.filters();
    filters.from = {o.Scratch(context), Type::kF32};
    filters.to = o.Out(context);
    filters.back = true;
    filters.adds = o.Adds(context);
    return o.kernels().filters(filters, context.stream);
  };
}

}  // namespace

bool CanBeCudnn(const Operands& o, const ConvPlan& plan) {
  const auto fits = [&](const TensorType& type, int alignment) {
    return TypeOf(type.dtype) == plan.factors && alignment >= kAlignment &&
           type.elements() <= std::numeric_limits<int32_t>::max();
  };
  if (!fits(o.input(0), o.InAlignment(0))) return false;
  if (plan.part == ConvPart::kWeight) {
    return plan.factors == Type::kF32 && fits(o.input(1), o.InAlignment(1));
  }
  const bool added_to = plan.part == ConvPart::kForward && o.has(2);
  return fits(o.output(), o.OutAlignment()) && (plan.factors == Type::kF32 || !added_to);
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

}  // namespace lockstep::engine::cuda
