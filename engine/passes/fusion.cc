// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/fusion.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/activation_fusion.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/head_fusion.h"
#include "engine/passes/image_fusion.h"
#include "engine/passes/pool_fusion.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class Fusion {
 public:
  Fusion(const Graph& graph, const FusionOptions& options)
      : graph_(graph), options_(options), match_(&graph), rewriter_(&graph) {}

  Graph Run() {
    FindPairs();
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) {
      if (absorbed_.contains(id)) continue;
      if (heads_.contains(id)) {
        Emit(id, heads_[id]);
      } else {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  void FindPairs() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) {
      const int reader = match_.OnlyReader(id);
      if (options_.relu && match_.Is(id, ops::kLinear) && match_.IsPlain(id) && reader >= 0 &&
          match_.Is(reader, ops::kRelu)) {
        Pair(reader, id, id);
      }
      if (options_.relu && match_.Is(id, ops::kLinearBackwardInput) &&
          graph_.node(id).inputs.size() == 2 && reader >= 0 &&
          match_.Is(reader, ops::kReluBackward) && graph_.node(reader).inputs[0].node == id) {
        Pair(reader, id, id);
      }
      if (options_.loss && match_.Is(id, ops::kSoftmaxCrossEntropyBackward)) PairLoss(id);
      if (reader >= 0 && match_.Is(reader, ops::kAdd) && !heads_.contains(reader) &&
          TakesAddend(id)) {
        Pair(reader, id, id);
      }
    }
  }
  // Returns whether the node has an optional last operand that is added to its result and lacks it.
  // An embedding's gradient is added to a base that is no activation: that of a tied weight.
  bool TakesAddend(int id) const {
    const size_t operands = graph_.node(id).inputs.size();
    return (options_.residuals && match_.Is(id, ops::kDropout) && operands == 2) ||
           (options_.residuals && match_.Is(id, ops::kLayerNormBackwardInput) && operands == 5) ||
           (options_.residuals && match_.Is(id, ops::kEmbeddingBackward) && operands == 2) ||
           (options_.addends && match_.Is(id, ops::kLinearBackwardInput) && operands == 2) ||
           (options_.addends && match_.Is(id, ops::kLinear) && operands == 3 && match_.IsPlain(id));
  }
  // `head` is emitted fused with `other`; `gone` is not emitted.
  void Pair(int head, int other, int gone) {
    heads_[head] = other;
    absorbed_.insert(gone);
  }
  void PairLoss(int backward) {
    const Node& node = graph_.node(backward);
    for (int id = 0; id < backward; ++id) {
      if (!match_.Is(id, ops::kSoftmaxCrossEntropy) || heads_.contains(id)) continue;
      const Node& forward = graph_.node(id);
      const bool same = forward.inputs[0] == node.inputs[0] && forward.inputs[1] == node.inputs[1];
      // The seed must be there when the loss is computed.
      if (same && node.inputs[2].node < id) {
        Pair(id, backward, backward);
        FindBias(id, backward);
        return;
      }
    }
  }

  // The first sum over the rows of the gradient is made as they are.
  void FindBias(int head, int backward) {
    if (!options_.loss_bias) return;
    for (const int reader : match_.Readers(backward)) {
      if (!match_.Is(reader, ops::kBiasBackward)) {
        continue;
      }
      biases_[head] = reader;
      absorbed_.insert(reader);
      return;
    }
  }

  void Emit(int head, int other) {
    const Node& a = graph_.node(head);
    const Node& b = graph_.node(other);
    Graph& to = rewriter_.to();
    if (match_.Is(head, ops::kRelu)) {
      Attrs attrs = b.attrs;
      attrs.Set("activation", std::string("relu"));
      rewriter_.Replace({head, 0}, to.Add(ops::kLinear, rewriter_.Map(b.inputs), attrs, b.name));
      return;
    }
    if (match_.Is(head, ops::kReluBackward)) {
      std::vector<Value> inputs = b.inputs;
      inputs.push_back(a.inputs[1]);
      rewriter_.Replace({head, 0},
                        to.Add(ops::kLinearBackwardInput, rewriter_.Map(inputs), b.attrs));
      return;
    }
    if (match_.Is(head, ops::kAdd)) {
      std::vector<Value> inputs = b.inputs;
      inputs.push_back(a.inputs[a.inputs[0].node == other ? 1 : 0]);
      Attrs attrs = b.attrs;
      if (match_.Is(other, ops::kLinearBackwardInput)) attrs.Set("third", std::string("addend"));
      const Value made = to.Add(*b.op, rewriter_.Map(inputs), attrs, b.name);
      rewriter_.Replace({head, 0}, made);
      return;
    }
    Attrs attrs = b.attrs;
    if (biases_.contains(head)) attrs.Set("bias", int64_t{1});
    const Value made =
        to.Add(ops::kSoftmaxCrossEntropyWithGradient, rewriter_.Map(b.inputs), attrs, a.name);
    if (biases_.contains(head)) rewriter_.Replace({biases_[head], 0}, {made.node, 3});
    rewriter_.Replace({head, 0}, {made.node, 0});
    rewriter_.Replace({head, 1}, {made.node, 1});
    rewriter_.Replace({other, 0}, {made.node, 2});
  }

  const Graph& graph_;
  const FusionOptions options_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::map<int, int> heads_;
  std::map<int, int> biases_;  // of losses: the gradient of the bias
  std::set<int> absorbed_;
};

}  // namespace

Graph Fuse(const Graph& graph, const FusionOptions& options) {
  Graph fused = options.heads ? FuseHeads(graph) : graph;
  if (options.pools) fused = FusePools(fused, options.direct_pools_only);
  if (options.norms) fused = FoldBatchNorms(fused);
  if (options.images) fused = FuseImagePairs(fused);
  if (options.activations) fused = FuseActivations(fused);
  if (options.epilogues.gelu || options.epilogues.sums) {
    fused = FuseEpilogues(fused, options.epilogues);
  }
  return Fusion(fused, options).Run();
}

}  // namespace lockstep::engine
