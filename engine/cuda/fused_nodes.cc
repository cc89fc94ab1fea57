// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/fused_nodes.h"

#include <algorithm>
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

// A normalisation, and what of its group comes before and after it.
struct NormGroup {
  const Node* residual_node = nullptr;  // the normalisation that is the sum's residual
  std::optional<Operands> residual;
  const Node* sum_node = nullptr;
  std::optional<Operands> sum;
  size_t residual_input = 0;  // of the sum; the other one is the branch
  Rounded rounded;
  bool keeps = true;  // whether others read what it makes

  bool drops() const { return sum_node != nullptr && sum_node->op == &ops::kDropout; }
  void Bind(const CudaContext& context, LayerNormArgs* args) const {
    args->x = residual.has_value() ? residual->In(context, 0) : sum->In(context, residual_input);
    if (residual.has_value()) {
      args->residual_gamma = residual->In(context, 1);
      args->residual_beta = residual->In(context, 2);
    }
    args->branch = sum->In(context, drops() || residual_input == 1 ? 0 : 1);
    if (drops()) args->drop.address = sum->InData<int32_t>(context, 1);
    args->sum = sum->Out(context);
  }
};

CudaKernel NormOfGroup(const NormGroup& group, const Operands& norm, const Node& norm_node) {
  LayerNormArgs args;
  args.rows = norm.input(0).shape[0];
  args.columns = norm.input(0).shape[1];
  args.eps = static_cast<float>(norm_node.attrs.Double("eps", 1e-5));
  if (group.residual_node != nullptr) {
    args.residual_eps = static_cast<float>(group.residual_node->attrs.Double("eps", 1e-5));
  }
  if (group.drops()) args.drop = DropOf(group.sum_node->attrs);
  return [group, norm, args](const CudaContext& context) {
    LayerNormArgs own = args;
    if (group.sum.has_value()) {
      group.Bind(context, &own);
    } else {
      own.x = norm.In(context, 0);
    }
    own.gamma = norm.In(context, 1);
    own.beta = norm.In(context, 2);
    own.y = norm.Out(context);
    if (!group.keeps) own.y.data = nullptr;
    own.rounded = group.rounded.Out(context);
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

// Returns whether a node behind `last` reads the first output of node `id`, or it is the graph's.
bool IsReadBehind(const Graph& graph, int id, int last) {
  const Value made{id, 0};
  for (const auto& [name, value] : graph.outputs()) {
    if (value == made) return true;
  }
  const auto reads = [&](const Node& node) {
    return std::find(node.inputs.begin(), node.inputs.end(), made) != node.inputs.end();
  };
  return std::any_of(graph.nodes().begin() + last + 1, graph.nodes().end(), reads);
}

// What lies around the normalisation `norm` in its group; `operands_of` gives a node's.
template <typename F>
NormGroup NormGroupOf(const Graph& graph, int first, int norm, int last, const F& operands_of) {
  NormGroup group;
  if (norm - first == 2) {
    group.residual_node = &graph.node(first);
    group.residual = operands_of(first);
  }
  if (norm > first) {
    group.sum_node = &graph.node(norm - 1);
    group.sum = operands_of(norm - 1);
    if (group.drops()) {
      group.residual_input = 2;
    } else if (group.residual.has_value()) {
      group.residual_input = group.sum_node->inputs[0] == Value{first, 0} ? 0 : 1;
    }
  }
  group.keeps = IsReadBehind(graph, norm, last);
  return group;
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
  // The last one: one before it is that of the residual.
  int norm = last;
  while (norm > first && !is_norm(norm)) --norm;
  LS_CHECK(is_norm(norm)) << graph.node(first).op->name;
  Rounded rounded;
  if (norm < last) {
    rounded.operands = operands_of(last);
    if (end.op == &ops::kDropout) rounded.drop = DropOf(end.attrs);
  }
  const Node& node = graph.node(norm);
  if (node.op == &ops::kLayerNormBackwardInput) {
    return NormGradientOfGroup(weight, operands_of(norm), rounded);
  }
  NormGroup group = NormGroupOf(graph, first, norm, last, operands_of);
  group.rounded = rounded;
  return NormOfGroup(group, operands_of(norm), node);
}

}  // namespace lockstep::engine::cuda
