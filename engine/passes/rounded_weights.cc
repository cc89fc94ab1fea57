// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/rounded_weights.h"

#include <cstdint>
#include <set>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {

Graph RoundWeightsInProducts(const Graph& graph, const Backend& backend) {
  const GraphMatcher match(&graph);
  Rewriter rewriter(&graph);
  std::set<int> rounding;  // products
  // Returns whether node `id` rounds a parameter for a kernel alone that can do so.
  const auto leaves_out = [&](int id) {
    if (!match.Is(id, ops::kCast) || !match.Is(match.Input(id, 0), ops::kParameter)) return false;
    const int reader = match.OnlyReader(id);
    if (reader < 0 || graph.node(id).outputs[0].dtype != DType::kBF16) return false;
    const Node& product = graph.node(reader);
    if (product.inputs.size() < 2 || product.inputs[1] != Value{id, 0}) return false;
    if (!backend.RoundsWeight(graph, product)) return false;
    rounding.insert(reader);
    return true;
  };
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    if (leaves_out(id)) {
      rewriter.Replace({id, 0}, rewriter.Map(node.inputs[0]));
    } else if (rounding.contains(id)) {
      Attrs attrs = node.attrs;
      attrs.Set(kRoundsWeightAttr, int64_t{1});
      rewriter.Remake(id, rewriter.Map(node.inputs), attrs);
    } else {
      rewriter.Copy(id);
    }
  }
  return rewriter.Finish();
}

}  // namespace lockstep::engine
