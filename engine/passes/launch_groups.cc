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

// Returns whether `next` is the gradient of relu of a sum that it alone reads, in the same type.
bool MasksSum(const Graph& graph, const std::vector<int>& readers, const Node& next, Value sum) {
  return Is(graph.node(sum.node), ops::kAdd) && Is(next, ops::kReluBackward) &&
         next.inputs[0] == sum && next.inputs[1] != sum && readers.size() == 1 &&
         graph.type(sum) == next.outputs[0];
}

}  // namespace

std::vector<int> LaunchGroups(const Graph& graph) {
  const std::vector<std::vector<std::vector<int>>> readers = graph.Readers();
  std::vector<int> last(graph.nodes().size());
  std::iota(last.begin(), last.end(), 0);
  for (size_t id = 0; id + 1 < last.size(); ++id) {
    const Node& node = graph.nodes()[id];
    const Node& next = graph.nodes()[id + 1];
    const Value sum{static_cast<int>(id), 0};
    const bool normed = Is(next, ops::kLayerNorm) && next.inputs[0] == sum &&
                        next.inputs[1] != sum && next.inputs[2] != sum;
    const bool masked = !node.outputs.empty() && MasksSum(graph, readers[id][0], next, sum);
    if ((AddsResidual(node) && normed) || masked) last[id] = static_cast<int>(id) + 1;
  }
  return last;
}

}  // namespace lockstep::engine
