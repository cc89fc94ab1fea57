// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/fp8.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

bool Is(const Node& node, const OpDef& op) { return node.op == &op; }
bool IsMarked(const Node& node) { return !node.attrs.String(ops::kFp8Attr).empty(); }

// The name of a linear layer's weight.
std::string WeightOf(const Graph& graph, const Node& linear) {
  return graph.node(linear.inputs[1].node).name;
}
// Of the first layer that has a weight: a matrix, a table or filters.
std::string FirstWeight(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (Is(node, ops::kParameter) && node.outputs[0].shape.size() >= 2) return node.name;
  }
  return "";
}
// Of the linear layer that makes `logits`; empty when none does.
std::string LastWeight(const Graph& graph, Value logits) {
  while (!graph.node(logits.node).op->leaf) {
    const Node& node = graph.node(logits.node);
    if (Is(node, ops::kLinear)) return WeightOf(graph, node);
    logits = node.inputs[0];
  }
  return "";
}

class Fp8Pass {
 public:
  Fp8Pass(const Graph& graph, bool keeps_weights)
      : graph_(graph), keeps_weights_(keeps_weights), match_(&graph), rewriter_(&graph) {}

  Graph Run() {
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      if (IsMarked(graph_.node(id))) {
        Emit(id);
      } else if (!IsReplaced(id)) {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  // A cast that is there for factors alone which are rounded from what it takes.
  bool IsReplaced(int id) const {
    if (!Is(graph_.node(id), ops::kCast)) return false;
    const std::vector<int>& readers = match_.Readers(id);
    for (const int reader : readers) {
      if (match_.IsOutput(reader)) return false;
      const Node& node = graph_.node(reader);
      if (!IsMarked(node)) return false;
      for (size_t i = 2; i < node.inputs.size(); ++i) {
        if (node.inputs[i].node == id) return false;
      }
    }
    return !readers.empty();
  }

  void Emit(int id) {
    const Node& node = graph_.node(id);
    const std::vector<std::string> formats = absl::StrSplit(node.attrs.String(ops::kFp8Attr), ',');
    LS_CHECK_EQ(formats.size(), 2u) << node.op->name;
    std::vector<Value> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      inputs.push_back(i < 2 ? Rounded(node.inputs[i], formats[i]) : rewriter_.Map(node.inputs[i]));
    }
    rewriter_.Remake(id, inputs, node.attrs);
  }

  // A leaf is rounded again for each reader, as by the precision pass, unless that is kept: it
  // stays where it is.
  Value Rounded(Value value, const std::string& format) {
    if (Is(graph_.node(value.node), ops::kCast)) value = graph_.node(value.node).inputs[0];
    const bool again = !keeps_weights_ && graph_.node(value.node).op->leaf;
    const auto key = std::pair(value, format);
    if (const auto it = rounded_.find(key); !again && it != rounded_.end()) return it->second;
    const Value made =
        rewriter_.to().Add(ops::kQuantizeFp8, {rewriter_.Map(value)}, {{"format", format}});
    rewriter_.to().SetOrigin(made, graph_.Origin(value));
    return rounded_[key] = made;
  }

  const Graph& graph_;
  const bool keeps_weights_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::map<std::pair<Value, std::string>, Value> rounded_;
};

}  // namespace

absl::StatusOr<Graph> MarkFp8(const Graph& graph, Value logits) {
  const std::string first = FirstWeight(graph), last = LastWeight(graph, logits);
  Rewriter rewriter(&graph);
  bool any = false;
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    if (!Is(node, ops::kLinear) || WeightOf(graph, node) == first ||
        WeightOf(graph, node) == last) {
      rewriter.Copy(id);
      continue;
    }
    any = true;
    Attrs attrs = node.attrs;
    attrs.Set(ops::kFp8Attr, std::string("e4m3,e4m3"));
    rewriter.Replace({id, 0},
                     rewriter.to().Add(ops::kLinear, rewriter.Map(node.inputs), attrs, node.name));
  }
  if (any) return rewriter.Finish();
  return absl::InvalidArgumentError(
      "fp8 is for linear layers between the first and the last layer, and the model has none: "
      "leave fp8 out");
}

Graph ApplyFp8(const Graph& graph, bool keeps_weights) {
  return Fp8Pass(graph, keeps_weights).Run();
}

}  // namespace lockstep::engine
