// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/fused_nodes.h"

#include <optional>

#include "common/check.h"
#include "engine/cuda/layer_norm_nodes.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/launch_groups.h"

namespace lockstep::engine::cuda {

namespace {

// What is grouped is what the kernels keep in registers.
static_assert(kMostNormColumns == kMostWarpColumns);

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

// What follows a normalisation and goes to a place of its own.
struct Rounded {
  std::optional<Operands> operands;
  Drop drop;  // of a dropout

  View Out(const CudaContext& context) const {
    return operands.has_value() ? operands->Out(context) : View{};
  }
  Drop DropAt(const CudaContext& context) const {
    Drop own = drop;
    if (operands.has_value() && operands->has(1)) {
      own.address = operands->InData<int32_t>(context, 1);
    }
    return own;
  }
};

CudaKernel NormOfGroup(const std::optional<Operands>& sum, const Node* sum_node,
                       const Operands& norm, const Node& norm_node, const Rounded& rounded) {
  const bool drops = sum_node != nullptr && sum_node->op == &ops::kDropout;
  LayerNormArgs args;
  args.rows = norm.input(0).shape[0];
  args.columns = norm.input(0).shape[1];
  args.eps = static_cast<float>(norm_node.attrs.Double("eps", 1e-5));
  if (drops) args.drop = DropOf(sum_node->attrs);
  return [sum, norm, rounded, args, drops](const CudaContext& context) {
    LayerNormArgs own = args;
    if (sum.has_value()) {
      own.x = sum->In(context, drops ? 2 : 0);
      own.branch = sum->In(context, drops ? 0 : 1);
      if (drops) own.drop.address = sum->InData<int32_t>(context, 1);
      own.sum = sum->Out(context);
    } else {
      own.x = norm.In(context, 0);
    }
    own.gamma = norm.In(context, 1);
    own.beta = norm.In(context, 2);
    own.y = norm.Out(context);
    own.rounded = rounded.Out(context);
    own.mean = norm.OutData<float>(context, 1);
    own.rstd = norm.OutData<float>(context, 2);
    return norm.kernels().layer_norm(own, context.stream);
  };
}

// `weight`: the node of the gradients of scale and shift, where it is part of the group.
CudaKernel NormGradientOfGroup(const std::optional<Operands>& weight, const Operands& norm,
                               const Rounded& rounded) {
  LayerNormBackwardInputArgs args;
  args.rows = norm.input(0).shape[0];
  args.columns = norm.input(0).shape[1];
  return [weight, norm, rounded, args](const CudaContext& context) {
    LayerNormBackwardInputArgs own = args;
    BindLayerNormGradient(norm, context, &own);
    own.rounded = rounded.Out(context);
    own.drop = rounded.DropAt(context);
    if (!weight.has_value()) return norm.kernels().layer_norm_backward_input(own, context.stream);
    LayerNormBackwardArgs both{own, {}};
    both.weight.rows = args.rows;
    both.weight.columns = args.columns;
    BindLayerNormSums(*weight, context, &both.weight);
    return norm.kernels().layer_norm_backward(both, context.stream);
  };
}

}  // namespace

absl::StatusOr<CudaKernel> PrepareGroup(const Program& program, int first, int last,
                                        const CudaTarget& target) {
  const Graph& graph = program.graph;
  const auto operands_of = [&](int id) {
    return Operands(graph, graph.node(id), program.memory.operands[static_cast<size_t>(id)],
                    target);
  };
  const Node& end = graph.node(last);
  if (end.op == &ops::kReluBackward) return MaskedSum(operands_of(first), operands_of(last));
  std::optional<Operands> weight;
  if (graph.node(first).op == &ops::kLayerNormBackwardWeight) weight = operands_of(first++);
  const auto is_norm = [&](int id) {
    return graph.node(id).op == &ops::kLayerNorm ||
           graph.node(id).op == &ops::kLayerNormBackwardInput;
  };
  const int norm = is_norm(first) ? first : first + 1;
  LS_CHECK(norm <= last && is_norm(norm)) << graph.node(first).op->name;
  Rounded rounded;
  if (norm < last) {
    rounded.operands = operands_of(last);
    if (end.op == &ops::kDropout) rounded.drop = DropOf(end.attrs);
  }
  const Node& node = graph.node(norm);
  if (node.op == &ops::kLayerNormBackwardInput) {
    return NormGradientOfGroup(weight, operands_of(norm), rounded);
  }
  std::optional<Operands> sum;
  if (norm > first) sum = operands_of(first);
  return NormOfGroup(sum, norm > first ? &graph.node(first) : nullptr, operands_of(norm), node,
                     rounded);
}

}  // namespace lockstep::engine::cuda
