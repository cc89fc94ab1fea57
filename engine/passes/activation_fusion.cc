// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/activation_fusion.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/op.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class ActivationFusion {
 public:
  explicit ActivationFusion(const Graph& graph)
      : graph_(graph), readers_(graph.Readers()), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) Find(id);
    for (int id = 0; id < count; ++id) {
      if (absorbed_.contains(id)) continue;
      if (forward_.contains(id)) {
        EmitForward(id);
      } else if (backward_.contains(id)) {
        EmitBackward(id);
      } else {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  bool Is(int id, std::string_view op) const { return op == graph_.node(id).op->name; }
  const std::vector<int>& Readers(int id) const { return readers_[static_cast<size_t>(id)][0]; }
  bool IsOutput(int reader) const { return reader >= static_cast<int>(graph_.nodes().size()); }

  // `id` is an activation: whether it and its gradient go into the products before them.
  void Find(int id) {
    if (!Is(id, "gelu") && !Is(id, "silu")) return;
    const int linear = graph_.node(id).inputs[0].node;
    const Node& product = graph_.node(linear);
    if (!Is(linear, "linear") || product.attrs.String("activation", "none") != "none") return;
    int backward = -1;
    for (const int reader : Readers(linear)) {
      if (reader == id) continue;
      if (IsOutput(reader) || backward >= 0 || !IsGradientOf(id, reader)) return;
      backward = reader;
    }
    absorbed_.insert(linear);
    forward_[id] = backward;
    if (backward < 0) return;
    absorbed_.insert(graph_.node(backward).inputs[0].node);
    backward_.insert(backward);
  }
  // `backward` is the gradient of activation `id`, of a product that nothing else reads.
  bool IsGradientOf(int id, int backward) const {
    if (!Is(backward, std::string(graph_.node(id).op->name) + "_backward")) return false;
    const std::vector<Value>& inputs = graph_.node(backward).inputs;
    const int product = inputs[0].node;
    return inputs[1] == graph_.node(id).inputs[0] && Is(product, "linear_backward_input") &&
           graph_.node(product).inputs.size() == 2 && Readers(product).size() == 1;
  }

  void EmitForward(int id) {
    const Node& activation = graph_.node(id);
    const Node& product = graph_.node(activation.inputs[0].node);
    const bool tanh = activation.attrs.String("approximate") == "tanh";
    Attrs attrs = product.attrs;
    attrs.Set("activation", std::string(activation.op->name) + (tanh ? "_tanh" : ""));
    const int backward = forward_.at(id);
    if (backward >= 0) attrs.Set("slope", int64_t{1});
    Graph& to = rewriter_.to();
    const Value made = to.Add("linear", rewriter_.Map(product.inputs), attrs, product.name);
    rewriter_.Replace({id, 0}, made);
    if (backward < 0) return;
    slopes_[backward] = {made.node, 1};
    // No value of the graph before is it: a name of its own, the same in every plan of the job.
    to.SetOrigin({made.node, 1}, {-1 - graph_.Origin(activation.inputs[0]).node, 1});
  }

  void EmitBackward(int id) {
    const Node& product = graph_.node(graph_.node(id).inputs[0].node);
    std::vector<Value> inputs = rewriter_.Map(product.inputs);
    inputs.push_back(slopes_.at(id));
    Attrs attrs = product.attrs;
    attrs.Set("third", std::string("slope"));
    rewriter_.Replace({id, 0}, rewriter_.to().Add("linear_backward_input", inputs, attrs));
  }

  const Graph& graph_;
  const std::vector<std::vector<std::vector<int>>> readers_;
  Rewriter rewriter_;
  std::map<int, int> forward_;  // activation -> its gradient, or -1
  std::set<int> backward_;
  std::set<int> absorbed_;
  std::map<int, Value> slopes_;  // by the gradient that reads it, in the new graph
};

}  // namespace

Graph FuseActivations(const Graph& graph) { return ActivationFusion(graph).Run(); }

}  // namespace lockstep::engine
