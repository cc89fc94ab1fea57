// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/activation_fusion.h"

#include <set>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class ActivationFusion {
 public:
  explicit ActivationFusion(const Graph& graph)
      : graph_(graph), match_(&graph), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) Find(id);
    for (int id = 0; id < count; ++id) {
      if (absorbed_.contains(id)) continue;
      if (activations_.contains(id)) {
        Emit(id);
      } else {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  // Notes `id` if it is an activation that goes into the product before it.
  void Find(int id) {
    if (!match_.Is(id, ops::kGelu) && !match_.Is(id, ops::kSilu)) return;
    const int linear = graph_.node(id).inputs[0].node;
    if (!match_.Is(linear, ops::kLinear) || !match_.IsPlain(linear)) return;
    if (match_.Readers(linear).size() != 1) return;
    absorbed_.insert(linear);
    activations_.insert(id);
  }

  void Emit(int id) {
    const Node& activation = graph_.node(id);
    const Node& product = graph_.node(activation.inputs[0].node);
    const bool tanh = activation.attrs.String("approximate") == "tanh";
    Attrs attrs = product.attrs;
    attrs.Set("activation", std::string(activation.op->name) + (tanh ? "_tanh" : ""));
    rewriter_.Replace({id, 0}, rewriter_.to().Add(ops::kLinear, rewriter_.Map(product.inputs),
                                                  attrs, product.name));
  }

  const Graph& graph_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::set<int> activations_;
  std::set<int> absorbed_;  // their products
};

}  // namespace

Graph FuseActivations(const Graph& graph) { return ActivationFusion(graph).Run(); }

}  // namespace lockstep::engine
