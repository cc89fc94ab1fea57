// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/fused_nodes.h"

#include "common/check.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {

namespace {

// The sum is not written: the gradient of relu alone reads it.
CudaKernel MaskedSum(const Operands& sum, const Operands& relu) {
  PointwiseArgs args;
  args.function = Function::kAdd;
  args.count = sum.output().elements();
  return [sum, relu, args](const CudaContext& context) {
    PointwiseArgs own = args;
    own.a = sum.In(context, 0);
    own.b = sum.In(context, 1);
    own.mask = relu.In(context, 1);
    own.out = relu.Out(context);
    return relu.kernels().pointwise(own, context.stream);
  };
}

}  // namespace

absl::StatusOr<CudaKernel> PrepareGroup(const Program& program, int first, int last,
                                        const CudaTarget& target) {
  const Graph& graph = program.graph;
  const Node& sum = graph.node(first);
  const Node& norm = graph.node(last);
  LS_CHECK_EQ(last, first + 1);
  const auto operands = [&](int id) -> const KernelOperands& {
    return program.memory.operands[static_cast<size_t>(id)];
  };
  const Operands a(graph, sum, operands(first), target);
  const Operands b(graph, norm, operands(last), target);
  if (norm.op == &ops::kReluBackward) return MaskedSum(a, b);
  LS_CHECK(norm.op == &ops::kLayerNorm) << norm.op->name;
  const bool drops = sum.op == &ops::kDropout;
  LayerNormArgs args;
  args.rows = b.input(0).shape[0];
  args.columns = b.input(0).shape[1];
  args.eps = static_cast<float>(norm.attrs.Double("eps", 1e-5));
  if (drops) args.drop = DropOf(sum.attrs);
  return [a, b, args, drops](const CudaContext& context) {
    LayerNormArgs own = args;
    own.x = a.In(context, drops ? 2 : 0);
    own.branch = a.In(context, drops ? 0 : 1);
    if (drops) own.drop.address = a.InData<int32_t>(context, 1);
    own.sum = a.Out(context);
    own.gamma = b.In(context, 1);
    own.beta = b.In(context, 2);
    own.y = b.Out(context);
    own.mean = b.OutData<float>(context, 1);
    own.rstd = b.OutData<float>(context, 2);
    return b.kernels().layer_norm(own, context.stream);
  };
}

}  // namespace lockstep::engine::cuda
