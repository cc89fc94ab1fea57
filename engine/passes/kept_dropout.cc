// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/kept_dropout.h"

#include <cstdint>
#include <map>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

constexpr size_t kResult = 1, kLogSums = 2;  // the gradient's operands
constexpr int kBits = 2;                     // attention's output

class KeptDropout {
 public:
  KeptDropout(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) FindGradient(id);
    if (forward_.empty()) return graph_;
    for (int id = 0; id < count; ++id) {
      if (const auto gradient = forward_.find(id); gradient != forward_.end()) {
        std::vector<Value> inputs = rewriter_.Map(graph_.node(id).inputs);
        inputs.push_back(bits_.at(gradient->second));
        Emit(id, inputs);
      } else if (bits_.contains(id)) {
        const Value made = Emit(id, rewriter_.Map(graph_.node(id).inputs));
        bits_[id] = {made.node, kBits};
        // An output that no other graph has without bits.
        rewriter_.to().SetOrigin(bits_[id], {graph_.Origin({id, 0}).node, kBits});
      } else {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  // Notes the node `id` and whose results it reads, if it is a gradient of attention and the back
  // end wants bits of both. Where attention is made again that one leaves them, so that they do not
  // lie there from one pass to the other; what is small, as the sums' logarithms, is the first's.
  void FindGradient(int id) {
    const Node& node = graph_.node(id);
    if (node.op != &ops::kAttentionBackward || !backend_.KeepsDropout(graph_, node)) return;
    const bool has_result = graph_.node(node.inputs[kResult].node).op == &ops::kAttention;
    const int from = node.inputs[has_result ? kResult : kLogSums].node;
    const Node& attention = graph_.node(from);
    if (attention.op != &ops::kAttention || !backend_.KeepsDropout(graph_, attention)) return;
    forward_[id] = from;
    bits_[from] = {};
  }

  // The node `id` with the attribute and these operands.
  Value Emit(int id, const std::vector<Value>& inputs) {
    Attrs attrs = graph_.node(id).attrs;
    attrs.Set(ops::kKeepsDropoutAttr, int64_t{1});
    return rewriter_.Remake(id, inputs, attrs);
  }

  const Graph& graph_;
  const Backend& backend_;
  Rewriter rewriter_;
  std::map<int, int> forward_;  // by gradient
  std::map<int, Value> bits_;   // by attention, in the new graph
};

}  // namespace

Graph KeepDropout(const Graph& graph, const Backend& backend) {
  return KeptDropout(graph, backend).Run();
}

}  // namespace lockstep::engine
