// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/rounded_weights.h"

#include <cstddef>

#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {

Graph RoundWeightsInProducts(const Graph& graph, const Backend& backend) {
  const GraphMatcher match(&graph);
  Rewriter rewriter(&graph);
  // Returns whether node `id` rounds a parameter for a kernel alone that can do so.
  const auto leaves_out = [&](int id) {
    if (!match.Is(id, ops::kCast) || !match.Is(match.Input(id, 0), ops::kParameter)) return false;
    const int reader = match.OnlyReader(id);
    if (reader < 0 || graph.node(id).outputs[0].dtype != DType::kBF16) return false;
    const Node& product = graph.node(reader);
    for (size_t i = 0; i < product.inputs.size(); ++i) {
      if (product.inputs[i] == Value{id, 0}) return backend.RoundsInput(graph, product, i);
    }
    return false;
  };
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    if (leaves_out(id)) {
      rewriter.Replace({id, 0}, rewriter.Map(graph.node(id).inputs[0]));
    } else {
      rewriter.Copy(id);
    }
  }
  return rewriter.Finish();
}

}  // namespace lockstep::engine
