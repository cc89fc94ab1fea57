// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/recompute.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class RecomputePass {
 public:
  RecomputePass(const Graph& graph, const std::string& seed, int level)
      : graph_(graph), level_(level), rewriter_(&graph) {
    const int leaf = graph.Find(seed);
    LS_CHECK(leaf >= 0) << seed;
    backward_.resize(graph.nodes().size(), false);
    backward_[static_cast<size_t>(leaf)] = true;
    bool begun = false;
    for (size_t id = 0; id < backward_.size(); ++id) {
      const Node& node = graph.nodes()[id];
      if (node.op->leaf) continue;
      for (const Value& input : node.inputs) begun |= backward_[static_cast<size_t>(input.node)];
      // What stands behind the first of them is made when it is needed, and once: the rounding of a
      // weight for a product of the backward pass.
      backward_[id] = begun;
    }
    for (const Value& value : graph.boundaries()) boundaries_.insert(value);
  }

  Graph Run() {
    FindWholeBlocks();
    FindNeeded();
    FindCheap();
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      if (!IsBackward(id) || graph_.node(id).op->leaf) {
        rewriter_.Copy(id);
      } else {
        EmitBackward(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  bool IsBackward(int id) const { return backward_[static_cast<size_t>(id)]; }
  // Returns what a view is a view of.
  Value Base(Value value) const {
    while (graph_.node(value.node).op->view) value = graph_.node(value.node).inputs[0];
    return value;
  }
  bool IsLeaf(Value value) const { return graph_.node(value.node).op->leaf; }

  // Nodes up to the boundary that ends the last block that is made again as a whole.
  void FindWholeBlocks() {
    const int blocks = level_ - kRecomputeSelective;
    if (blocks <= 0 || boundaries_.empty()) return;
    const auto last =
        std::next(boundaries_.begin(), std::min(blocks, static_cast<int>(boundaries_.size())) - 1);
    whole_until_ = last->node;
  }
  bool InWholeBlock(Value value) const { return value.node <= whole_until_; }

  // Finds what the backward pass reads of the forward pass.
  void FindNeeded() {
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      if (!IsBackward(id)) continue;
      for (const Value& input : graph_.node(id).inputs) {
        if (!IsBackward(input.node)) needed_.insert(Base(input));
      }
    }
  }

  // One pass over the values of an activation, norm or cast.
  static bool IsCheap(const Node& node) {
    for (const OpDef* op : {&ops::kCast, &ops::kQuantizeFp8, &ops::kLayerNorm, &ops::kSoftmax}) {
      if (node.op == op) return true;
    }
    if (node.op == &ops::kBatchNorm) return node.inputs.size() == 3;
    return node.op->half.elementwise && node.inputs.size() == 1;
  }
  // Cheap values that follow from what is kept anyway.
  void FindCheap() {
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      const Node& node = graph_.node(id);
      if (IsBackward(id) || node.op->leaf || node.op->view || !IsCheap(node)) continue;
      const bool available = std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value input) {
        const Value base = Base(input);
        return IsLeaf(base) || needed_.contains(base) || cheap_.contains(base.node);
      });
      if (available) cheap_.insert(id);
    }
  }

  // Returns whether `base` is alive in the backward pass. Statistics, which are small, always are.
  bool IsKept(Value base) const {
    if (IsLeaf(base) || boundaries_.contains(base)) return true;
    const HalfRules& rules = graph_.node(base.node).op->half;
    const bool cast = graph_.node(base.node).op == &ops::kCast;
    if (!cast && (rules.activations >> base.output & 1) == 0) return true;
    if (InWholeBlock(base)) return false;
    return needed_.contains(base) && !(level_ >= kRecomputeSelective && cheap_.contains(base.node));
  }

  // `value` of the forward pass, for the backward pass.
  Value Again(Value value) {
    if (IsKept(Base(value))) return rewriter_.Map(value);
    const auto it = again_.find(value);
    if (it != again_.end()) return it->second;
    const Node& node = graph_.node(value.node);
    std::vector<Value> inputs;
    for (const Value& input : node.inputs) inputs.push_back(Again(input));
    const Value made = rewriter_.to().Add(
        *node.op, inputs, node.attrs, node.name.empty() ? "" : absl::StrCat(node.name, " (again)"));
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      const Value output{made.node, o};
      again_[{value.node, o}] = output;
      rewriter_.to().SetOrigin(output, graph_.Origin({value.node, o}));
    }
    return again_.at(value);
  }

  void EmitBackward(int id) {
    const Node& node = graph_.node(id);
    std::vector<Value> inputs;
    for (const Value& input : node.inputs) {
      inputs.push_back(IsBackward(input.node) ? rewriter_.Map(input) : Again(input));
    }
    rewriter_.Remake(id, inputs, node.attrs);
  }

  const Graph& graph_;
  const int level_;
  Rewriter rewriter_;
  std::vector<bool> backward_;  // by node: what depends on the seed, and all behind the first such
  std::set<Value> boundaries_;  // in the order of the graph
  std::set<Value> needed_;      // bases that the backward pass reads
  std::set<int> cheap_;         // nodes
  std::map<Value, Value> again_;
  int whole_until_ = -1;
};

}  // namespace

int MostRecompute(const Graph& graph) {
  return kRecomputeSelective + static_cast<int>(graph.boundaries().size());
}

Graph Recompute(const Graph& graph, const std::string& seed, int level) {
  if (level <= 0) return graph;
  return RecomputePass(graph, seed, level).Run();
}

}  // namespace lockstep::engine
