// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/autodiff.h"

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// For each node: whether it depends on a value of `wrt`.
std::vector<bool> DependsOn(const Graph& graph, const std::vector<Value>& wrt) {
  std::vector<bool> depends(graph.nodes().size(), false);
  for (const Value& value : wrt) depends[static_cast<size_t>(value.node)] = true;
  for (size_t i = 0; i < depends.size(); ++i) {
    for (const Value& input : graph.nodes()[i].inputs) {
      if (depends[static_cast<size_t>(input.node)]) depends[i] = true;
    }
  }
  return depends;
}

}  // namespace

absl::StatusOr<std::vector<Value>> Differentiate(Graph* graph,
                                                 const std::vector<std::pair<Value, Value>>& seeds,
                                                 const std::vector<Value>& wrt) {
  const std::vector<bool> depends = DependsOn(*graph, wrt);
  std::map<Value, Value> gradients;
  const auto accumulate = [&](Value value, Value gradient) {
    const auto [it, fresh] = gradients.emplace(value, gradient);
    if (!fresh) it->second = graph->Add(ops::kAdd, {it->second, gradient});
  };
  for (const auto& [value, seed] : seeds) accumulate(value, seed);

  for (int id = static_cast<int>(depends.size()) - 1; id >= 0; --id) {
    const Node& node = graph->node(id);
    if (!depends[static_cast<size_t>(id)] || node.op->leaf) continue;
    std::vector<std::optional<Value>> output_gradients(node.outputs.size());
    bool any = false;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const auto it = gradients.find(Value{id, static_cast<int>(o)});
      if (it == gradients.end()) continue;
      output_gradients[o] = it->second;
      any = true;
    }
    if (!any) continue;
    if (node.op->gradient == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the loss depends on a parameter through ", node.op->name, " ", node.name,
                       ", which has no gradient: ", node.op->no_gradient));
    }
    std::vector<bool> wanted;
    for (const Value& input : node.inputs)
      wanted.push_back(depends[static_cast<size_t>(input.node)]);
    GradientContext context(graph, id, std::move(output_gradients), std::move(wanted));
    node.op->gradient(context);
    if (!graph->status().ok()) return graph->status();
    for (size_t i = 0; i < context.input_gradients.size(); ++i) {
      if (!context.wanted[i] || !context.input_gradients[i]) continue;
      accumulate(context.node.inputs[i], *context.input_gradients[i]);
    }
  }
  std::vector<Value> result;
  for (const Value& value : wrt) {
    const auto it = gradients.find(value);
    result.push_back(it == gradients.end() ? Value() : it->second);
  }
  return result;
}

}  // namespace lockstep::engine
