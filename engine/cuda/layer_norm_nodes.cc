// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/layer_norm_nodes.h"

#include "engine/cuda/kernels.h"
#include "engine/graph/op.h"

namespace lockstep::engine::cuda {
namespace {

absl::StatusOr<CudaKernel> PrepareLayerNorm(const Graph& graph, const Node& node,
                                            const KernelOperands& operands,
                                            const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LayerNormArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  args.eps = static_cast<float>(node.attrs.Double("eps", 1e-5));
  return [o, args](const CudaContext& context) {
    LayerNormArgs own = args;
    own.x = o.In(context, 0);
    own.gamma = o.In(context, 1);
    own.beta = o.In(context, 2);
    own.y = o.Out(context);
    own.mean = o.OutData<float>(context, 1);
    own.rstd = o.OutData<float>(context, 2);
    return o.kernels().layer_norm(own, context.stream);
  };
}

absl::StatusOr<CudaKernel> PrepareLayerNormBackwardInput(const Graph& graph, const Node& node,
                                                         const KernelOperands& operands,
                                                         const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LayerNormBackwardInputArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  return [o, args](const CudaContext& context) {
    LayerNormBackwardInputArgs own = args;
    BindLayerNormGradient(o, context, &own);
    return o.kernels().layer_norm_backward_input(own, context.stream);
  };
}

size_t LayerNormScratch(const Graph& graph, const Node& node) {
  const Shape& shape = graph.type(node.inputs[0]).shape;
  return AlignedBytes(static_cast<size_t>(LayerNormPartialFloats(shape[0], shape[1])) *
                      sizeof(float));
}

absl::StatusOr<CudaKernel> PrepareLayerNormBackwardWeight(const Graph& graph, const Node& node,
                                                          const KernelOperands& operands,
                                                          const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LayerNormBackwardWeightArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  return [o, args](const CudaContext& context) {
    LayerNormBackwardWeightArgs own = args;
    BindLayerNormSums(o, context, &own);
    return o.kernels().layer_norm_backward_weight(own, context.stream);
  };
}

}  // namespace

void BindLayerNormGradient(const Operands& o, const CudaContext& context,
                           LayerNormBackwardInputArgs* args) {
  args->dy = o.In(context, 0);
  args->x = o.In(context, 1);
  args->gamma = o.In(context, 2);
  args->mean = o.In(context, 3);
  args->rstd = o.In(context, 4);
  args->residual = o.In(context, 5);
  args->dx = o.Out(context);
}

void BindLayerNormSums(const Operands& o, const CudaContext& context,
                       LayerNormBackwardWeightArgs* args) {
  args->dy = o.In(context, 0);
  args->x = o.In(context, 1);
  args->mean = o.In(context, 2);
  args->rstd = o.In(context, 3);
  args->dgamma = o.OutData<float>(context);
  args->dbeta = o.OutData<float>(context, 1);
  args->partial = o.Scratch<float>(context);
  // gamma and beta are used together: both outputs lie in the gradient vector, or neither does.
  args->adds = o.Adds(context);
}

const CudaKernelDef kLayerNorm = {nullptr, PrepareLayerNorm};
const CudaKernelDef kLayerNormBackwardInput = {nullptr, PrepareLayerNormBackwardInput};
const CudaKernelDef kLayerNormBackwardWeight = {LayerNormScratch, PrepareLayerNormBackwardWeight};

}  // namespace lockstep::engine::cuda
