// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/head_fusion.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kLeastColumns = 4096;
constexpr int64_t kLeastRows = 257;

class HeadFusion {
 public:
  explicit HeadFusion(const Graph& graph) : graph_(graph), match_(&graph), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) {
      if (const std::optional<Head> head = Find(id)) Take(*head);
    }
    for (int id = 0; id < count; ++id) {
      if (heads_.contains(id)) {
        Emit(heads_.at(id));
      } else if (!absorbed_.contains(id)) {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  struct Head {
    int linear = -1;
    int loss = -1;
    int gradient = -1;  // of the logits
    int dx = -1;
    int dw = -1;
    int dbias = -1;
  };

  // The head whose loss is node `loss`.
  std::optional<Head> Find(int loss) const {
    if (!match_.Is(loss, ops::kSoftmaxCrossEntropy)) return std::nullopt;
    Head head;
    head.loss = loss;
    head.linear = graph_.node(loss).inputs[0].node;
    if (!IsWideLinear(head.linear)) return std::nullopt;
    for (const int reader : match_.Readers(head.linear)) {
      if (reader == loss) continue;
      if (!match_.Is(reader, ops::kSoftmaxCrossEntropyBackward) || head.gradient >= 0)
        return std::nullopt;
      head.gradient = reader;
    }
    if (head.gradient < 0) return std::nullopt;
    const Node& gradient = graph_.node(head.gradient);
    // The seed must be there when the loss is computed.
    const bool same =
        gradient.inputs[1] == graph_.node(loss).inputs[1] && gradient.inputs[2].node < loss;
    if (!same || !FindGradients(&head)) return std::nullopt;
    return head;
  }
  bool IsWideLinear(int id) const {
    const Node& node = graph_.node(id);
    return match_.Is(id, ops::kLinear) && node.inputs.size() <= 3 &&
           node.attrs.Int("in_out") == 0 && match_.IsPlain(id) &&
           node.outputs[0].shape[0] >= kLeastRows && node.outputs[0].shape[1] >= kLeastColumns;
  }
  // All readers of the gradient of the logits are the gradients of the linear layer, each once.
  bool FindGradients(Head* head) const {
    const std::vector<Value>& linear = graph_.node(head->linear).inputs;
    for (const int reader : match_.Readers(head->gradient)) {
      int* place = nullptr;
      if (match_.Is(reader, ops::kLinearBackwardInput)) {
        const std::vector<Value>& inputs = graph_.node(reader).inputs;
        if (inputs.size() == 2 && inputs[1] == linear[1]) place = &head->dx;
      } else if (match_.Is(reader, ops::kLinearBackwardWeight)) {
        if (graph_.node(reader).inputs[1] == linear[0]) place = &head->dw;
      } else if (match_.Is(reader, ops::kBiasBackward) && linear.size() == 3) {
        place = &head->dbias;
      }
      if (place == nullptr || *place >= 0) return false;
      *place = reader;
    }
    return head->dx >= 0 && head->dw >= 0 && (head->dbias >= 0) == (linear.size() == 3);
  }

  void Take(const Head& head) {
    heads_[head.loss] = head;
    for (const int id : {head.linear, head.gradient, head.dx, head.dw, head.dbias}) {
      absorbed_.insert(id);
    }
  }

  void Emit(const Head& head) {
    const Node& linear = graph_.node(head.linear);
    const Node& gradient = graph_.node(head.gradient);
    std::vector<Value> inputs = {linear.inputs[0], linear.inputs[1], gradient.inputs[1],
                                 gradient.inputs[2]};
    if (linear.inputs.size() == 3) inputs.push_back(linear.inputs[2]);
    const Value made = rewriter_.to().Add(ops::kLinearSoftmaxCrossEntropy, rewriter_.Map(inputs),
                                          gradient.attrs, graph_.node(head.loss).name);
    rewriter_.Replace({head.loss, 0}, {made.node, 0});
    rewriter_.Replace({head.loss, 1}, {made.node, 1});
    rewriter_.Replace({head.dx, 0}, {made.node, 2});
    rewriter_.Replace({head.dw, 0}, {made.node, 3});
    if (head.dbias >= 0) rewriter_.Replace({head.dbias, 0}, {made.node, 4});
  }

  const Graph& graph_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::map<int, Head> heads_;  // by their losses
  std::set<int> absorbed_;
};

}  // namespace

Graph FuseHeads(const Graph& graph) { return HeadFusion(graph).Run(); }

}  // namespace lockstep::engine
