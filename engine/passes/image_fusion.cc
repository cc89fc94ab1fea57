// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/image_fusion.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

// One walk over the graph: some nodes become heads, which are emitted in another form and stand for
// the nodes that they absorb.
class Walk {
 public:
  explicit Walk(const Graph& graph) : graph_(graph), match_(&graph), rewriter_(&graph) {}

  Graph FoldBatchNorms() {
    ForNodes([&](int id) {
      if (match_.Is(id, ops::kBatchNormInference) && IsOnlyRead(match_.Input(id, 0), ops::kConv2d))
        Absorb(id, match_.Input(id, 0));
    });
    return Emit([&](int id) { return EmitFolded(id); });
  }

  Graph FuseResidualConvs() {
    ForNodes([&](int id) {
      if (!match_.Is(id, ops::kRelu) || !IsOnlyRead(match_.Input(id, 0), ops::kAdd)) return;
      const int sum = match_.Input(id, 0);
      for (size_t i = 0; i < 2; ++i) {
        const int conv = match_.Input(sum, i);
        if (!IsOnlyRead(conv, ops::kConv2d) || graph_.node(conv).inputs.size() != 3) continue;
        residual_[id] = graph_.node(sum).inputs[1 - i];
        return Absorb(id, conv, sum);
      }
    });
    return Emit([&](int id) { return EmitPair(id); });
  }

  Graph FusePairs() {
    ForNodes([&](int id) { FindPair(id); });
    return Emit([&](int id) { return EmitPair(id); });
  }

 private:
  // `id` is an `op` without activation whose first output has one reader, which is not the caller
  // of the graph, and is not absorbed yet.
  bool IsOnlyRead(int id, const OpDef& op) const {
    const std::vector<int>& readers = match_.Readers(id);
    return match_.Is(id, op) && match_.IsPlain(id) && readers.size() == 1 &&
           !absorbed_.contains(id) && !heads_.contains(id) && !match_.IsOutput(readers[0]);
  }
  void Absorb(int head, int gone, int also = -1) {
    heads_[head] = gone;
    absorbed_.insert(gone);
    if (also >= 0) absorbed_.insert(also);
  }

  template <typename Body>
  void ForNodes(const Body& body) {
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) body(id);
  }
  // `make` gives the value of a head in the new graph.
  template <typename Make>
  Graph Emit(const Make& make) {
    ForNodes([&](int id) {
      if (absorbed_.contains(id)) return;
      if (!heads_.contains(id)) {
        rewriter_.Copy(id);
        return;
      }
      rewriter_.ReplaceOutputs(id, make(id));
    });
    return rewriter_.Finish();
  }

  Value EmitFolded(int id) {
    const Node& norm = graph_.node(id);
    const Node& conv = graph_.node(heads_[id]);
    std::vector<Value> inputs = {conv.inputs[1], norm.inputs[1], norm.inputs[2], norm.inputs[3],
                                 norm.inputs[4]};
    if (conv.inputs.size() == 3) inputs.push_back(conv.inputs[2]);
    const Value folded = rewriter_.to().Add(ops::kFoldBatchNorm, rewriter_.Map(inputs), norm.attrs);
    for (int o = 0; o < 2; ++o) {  // no values of the graph before
      rewriter_.to().SetOrigin({folded.node, o}, {-1 - graph_.Origin({id, 0}).node, 1 + o});
    }
    return rewriter_.to().Add(ops::kConv2d,
                              {rewriter_.Map(conv.inputs[0]), folded, {folded.node, 1}}, conv.attrs,
                              conv.name);
  }

  void FindPair(int id) {
    if (match_.Is(id, ops::kRelu)) {
      const int made = match_.Input(id, 0);
      for (const OpDef* op : {&ops::kConv2d, &ops::kBatchNorm, &ops::kBatchNormInference}) {
        if (IsOnlyRead(made, *op)) return Absorb(id, made);
      }
      if (!IsOnlyRead(made, ops::kAdd)) return;
      for (size_t i = 0; i < 2; ++i) {
        const int norm = match_.Input(made, i);
        if (IsOnlyRead(norm, ops::kBatchNorm) && graph_.node(norm).inputs.size() == 3) {
          residual_[id] = graph_.node(made).inputs[1 - i];
          return Absorb(id, norm, made);
        }
      }
    } else if (match_.Is(id, ops::kReluBackward)) {
      const int made = match_.Input(id, 0);
      const bool conv =
          IsOnlyRead(made, ops::kConv2dBackwardInput) && graph_.node(made).inputs.size() == 2;
      const bool pool = IsOnlyRead(made, ops::kMaxPool2dBackward) &&
                        graph_.node(made).inputs[1] == graph_.node(id).inputs[1];
      if (conv || pool) Absorb(id, made);
    } else if (match_.Is(id, ops::kBatchNormBackward) && graph_.node(id).inputs.size() == 5 &&
               IsOnlyRead(match_.Input(id, 0), ops::kReluBackward)) {
      Absorb(id, match_.Input(id, 0));
    }
  }

  Value EmitPair(int id) {
    const Node& head = graph_.node(id);
    const Node& gone = graph_.node(heads_[id]);
    std::vector<Value> inputs = gone.inputs;
    Attrs attrs = gone.attrs;
    if (match_.Is(id, ops::kRelu)) {
      attrs.Set("activation", std::string("relu"));
      if (residual_.contains(id)) inputs.push_back(residual_[id]);
      const Value made = rewriter_.to().Add(*gone.op, rewriter_.Map(inputs), attrs, gone.name);
      // Statistics of a batch norm are read by others.
      for (size_t o = 1; o < gone.outputs.size(); ++o) {
        rewriter_.Replace({heads_[id], static_cast<int>(o)}, {made.node, static_cast<int>(o)});
      }
      return made;
    }
    if (match_.Is(id, ops::kBatchNormBackward)) {
      inputs = head.inputs;
      inputs[0] = gone.inputs[0];
      inputs.push_back(gone.inputs[1]);
      return rewriter_.to().Add(*head.op, rewriter_.Map(inputs), head.attrs, head.name);
    }
    if (match_.Is(heads_[id], ops::kMaxPool2dBackward)) {
      attrs.Set("relu", int64_t{1});
    } else {
      inputs.push_back(head.inputs[1]);
    }
    return rewriter_.to().Add(*gone.op, rewriter_.Map(inputs), attrs);
  }

  const Graph& graph_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::map<int, int> heads_;       // head -> what it absorbs
  std::map<int, Value> residual_;  // of a relu head
  std::set<int> absorbed_;
};

}  // namespace

Graph FuseImagePairs(const Graph& graph) { return Walk(graph).FusePairs(); }

Graph FoldBatchNorms(const Graph& graph) { return Walk(graph).FoldBatchNorms(); }

Graph FuseResiduals(const Graph& graph) { return Walk(graph).FuseResidualConvs(); }

}  // namespace lockstep::engine
