// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/epilogue_fusion.h"

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

class EpilogueFusion {
 public:
  EpilogueFusion(const Graph& graph, const EpilogueOptions& options)
      : graph_(graph), options_(options), match_(&graph), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) {
      if (options_.gelu && match_.Is(id, ops::kGelu)) FindGelu(id);
      if (options_.sums && match_.Is(id, ops::kBiasBackward)) FindSums(id);
    }
    for (int id = 0; id < count; ++id) {
      if (absorbed_.contains(id)) continue;
      if (forward_.contains(id)) {
        EmitForward(id);
      } else if (backward_.contains(id)) {
        EmitBackward(id);
      } else if (sums_.contains(id)) {
        EmitSums(id);
      } else {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  // Notes `id` if it and its gradient go into the products before them.
  void FindGelu(int id) {
    const Node& gelu = graph_.node(id);
    if (gelu.attrs.String("approximate") != "tanh") return;
    const int linear = gelu.inputs[0].node;
    if (!match_.Is(linear, ops::kLinear) || !match_.IsPlain(linear)) return;
    if (graph_.node(linear).inputs.size() == 4) return;
    int backward = -1;
    for (const int reader : match_.Readers(linear)) {
      if (reader == id) continue;
      if (backward >= 0 || !IsGradient(id, reader)) return;
      backward = reader;
    }
    if (backward < 0) return;
    absorbed_.insert(linear);
    absorbed_.insert(graph_.node(backward).inputs[0].node);
    forward_.insert(id);
    backward_.insert(backward);
  }
  // `backward` is the gradient of `id`, of a product that nothing else reads.
  bool IsGradient(int id, int backward) const {
    if (!match_.Is(backward, ops::kGeluBackward)) return false;
    const std::vector<Value>& inputs = graph_.node(backward).inputs;
    const int product = inputs[0].node;
    return inputs[1] == graph_.node(id).inputs[0] &&
           match_.Is(product, ops::kLinearBackwardInput) &&
           graph_.node(product).inputs.size() == 2 && match_.Readers(product).size() == 1;
  }

  // Notes the sums `id` if a product before them reads the same gradient.
  void FindSums(int id) {
    const Value dy = graph_.node(id).inputs[0];
    for (const int reader : match_.Readers(dy.node, dy.output)) {
      if (reader >= id || !match_.Is(reader, ops::kLinearBackwardWeight) || sums_.contains(reader))
        continue;
      sums_[reader] = id;
      absorbed_.insert(id);
      return;
    }
  }

  void EmitForward(int id) {
    const Value kept = graph_.node(id).inputs[0];
    const Node& product = graph_.node(kept.node);
    Attrs attrs = product.attrs;
    attrs.Set("activation", std::string("gelu_tanh"));
    attrs.Set("keep", int64_t{1});
    const Value made =
        rewriter_.to().Add(ops::kLinear, rewriter_.Map(product.inputs), attrs, product.name);
    rewriter_.Replace({id, 0}, made);
    rewriter_.Replace(kept, {made.node, 1});
  }

  void EmitBackward(int id) {
    const Node& gradient = graph_.node(id);
    const Node& product = graph_.node(gradient.inputs[0].node);
    std::vector<Value> inputs = product.inputs;
    inputs.push_back(gradient.inputs[1]);
    Attrs attrs = product.attrs;
    attrs.Set("third", std::string("gelu_tanh"));
    rewriter_.Replace({id, 0},
                      rewriter_.to().Add(ops::kLinearBackwardInput, rewriter_.Map(inputs), attrs));
  }

  void EmitSums(int id) {
    const Node& product = graph_.node(id);
    const int sums = sums_.at(id);
    Attrs attrs = product.attrs;
    attrs.Set("sums", int64_t{product.inputs[0] == graph_.node(sums).inputs[0] ? 1 : 2});
    const Value made = rewriter_.to().Add(ops::kLinearBackwardWeight, rewriter_.Map(product.inputs),
                                          attrs, product.name);
    rewriter_.Replace({id, 0}, made);
    rewriter_.Replace({sums, 0}, {made.node, 1});
  }

  const Graph& graph_;
  const EpilogueOptions options_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::set<int> forward_;    // activations
  std::set<int> backward_;   // their gradients
  std::map<int, int> sums_;  // by product
  std::set<int> absorbed_;
};

}  // namespace

Graph FuseEpilogues(const Graph& graph, const EpilogueOptions& options) {
  return EpilogueFusion(graph, options).Run();
}

}  // namespace lockstep::engine
