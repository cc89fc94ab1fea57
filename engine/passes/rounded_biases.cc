// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/rounded_biases.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {

Graph RoundBiasesBefore(const Graph& graph, const Backend& backend) {
  const GraphMatcher match(&graph);
  Rewriter rewriter(&graph);
  std::map<std::pair<int, DType>, Value> rounded;  // of parameters, in the new graph
  const auto round = [&](const Value& bias, DType type) {
    auto [it, is_new] = rounded.try_emplace({bias.node, type});
    if (is_new) {
      it->second = rewriter.to().Add(ops::kCast, {rewriter.Map(bias)},
                                     {{kDTypeAttr, std::string(Name(type))}});
      rewriter.to().SetOrigin(it->second, graph.Origin(bias));
    }
    return it->second;
  };
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    const bool own = node.inputs.size() > 2 && match.Is(match.Input(id, 2), ops::kParameter) &&
                     backend.RoundsBias(graph, node);
    if (!own) {
      rewriter.Copy(id);
      if (match.Is(id, ops::kCast) && match.Is(match.Input(id, 0), ops::kParameter)) {
        rounded.try_emplace({match.Input(id, 0), node.outputs[0].dtype}, rewriter.Map({id, 0}));
      }
      continue;
    }
    std::vector<Value> inputs = rewriter.Map(node.inputs);
    inputs[2] = round(node.inputs[2], node.outputs[0].dtype);
    rewriter.Remake(id, inputs, node.attrs);
  }
  return rewriter.Finish();
}

}  // namespace lockstep::engine
