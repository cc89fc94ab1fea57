// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/launch_groups.h"

#include <numeric>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

bool Is(const Node& node, const OpDef& op) { return node.op == &op; }

// Returns whether the node's only result is the sum of a residual and something of the same shape.
bool AddsResidual(const Node& node) {
  return Is(node, ops::kAdd) || (Is(node, ops::kDropout) && node.inputs.size() == 3);
}

// Returns whether `next` is the gradient of the input of the normalisation whose scale's and
// shift's gradients the node makes, of rows that one launch keeps meanwhile.
bool SharesRows(const Graph& graph, const Node& node, const Node& next) {
  if (!Is(node, ops::kLayerNormBackwardWeight) || !Is(next, ops::kLayerNormBackwardInput)) {
    return false;
  }
  const int64_t columns = graph.type(node.inputs[0]).shape[1];
  return node.inputs[0] == next.inputs[0] && node.inputs[1] == next.inputs[1] &&
         node.inputs[2] == next.inputs[3] && node.inputs[3] == next.inputs[4] && columns % 8 == 0 &&
         columns <= kMostNormColumns;
}

// Returns whether `next` is the gradient of relu of a sum that it alone reads, in the same type.
bool MasksSum(const Graph& graph, const std::vector<int>& readers, const Node& next, Value sum) {
  return Is(graph.node(sum.node), ops::kAdd) && Is(next, ops::kReluBackward) &&
         next.inputs[0] == sum && next.inputs[1] != sum && readers.size() == 1 &&
         graph.type(sum) == next.outputs[0];
}

// Returns whether `next` is the normalisation of a sum with a residual.
bool NormsSum(const Node& node, const Node& next, Value sum) {
  return AddsResidual(node) && Is(next, ops::kLayerNorm) && next.inputs[0] == sum &&
         next.inputs[1] != sum && next.inputs[2] != sum;
}

// Returns whether the normalisation `id` is made again for the sum behind it alone, which is itself
// normalised.
bool RemakesResidual(const Graph& graph, const std::vector<std::vector<int>>& readers, int id) {
  const Node& node = graph.node(id);
  return Is(node, ops::kLayerNorm) && node.outputs[0].dtype == DType::kF32 &&
         readers[0].size() == 1 && readers[1].empty() && readers[2].empty() &&
         NormsResidual(graph, id + 1, {id, 0});
}

// Returns whether `next` is what a normalisation's node makes in another type, whole or behind
// dropout. So the two lie at places of their own.
bool RoundsNorm(const Node& node, const Node& next, Value made) {
  const bool norm = Is(node, ops::kLayerNorm), gradient = Is(node, ops::kLayerNormBackwardInput);
  if ((!norm && !gradient) || next.outputs.empty()) return false;
  if (next.outputs[0].dtype == node.outputs[0].dtype) return false;
  if (Is(next, ops::kCast)) return next.inputs[0] == made;
  return gradient && Is(next, ops::kDropout) && next.inputs.size() == 2 && next.inputs[0] == made;
}

}  // namespace

bool NormsResidual(const Graph& graph, int id, Value residual) {
  if (id + 1 >= static_cast<int>(graph.nodes().size())) return false;
  const Node& sum = graph.node(id);
  if (!AddsResidual(sum) || !NormsSum(sum, graph.node(id + 1), {id, 0})) return false;
  if (Is(sum, ops::kDropout)) return sum.inputs[2] == residual && sum.inputs[0] != residual;
  return (sum.inputs[0] == residual) != (sum.inputs[1] == residual);
}

std::vector<int> LaunchGroups(const Graph& graph) {
  const std::vector<std::vector<std::vector<int>>> readers = graph.Readers();
  std::vector<int> last(graph.nodes().size());
  std::iota(last.begin(), last.end(), 0);
  std::vector<bool> remakes(last.size());
  for (size_t id = last.size(); id-- > 1;) {
    const Node& node = graph.nodes()[id - 1];
    const Node& next = graph.nodes()[id];
    if (node.outputs.empty()) continue;
    const Value made{static_cast<int>(id) - 1, 0};
    remakes[id - 1] =
        last[id] > static_cast<int>(id) && RemakesResidual(graph, readers[id - 1], made.node);
    const bool joins = (NormsSum(node, next, made) && !remakes[id]) || remakes[id - 1] ||
                       RoundsNorm(node, next, made) || SharesRows(graph, node, next) ||
                       MasksSum(graph, readers[id - 1][0], next, made);
    if (joins) last[id - 1] = last[id];
  }
  return last;
}

}  // namespace lockstep::engine
