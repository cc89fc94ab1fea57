// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/pool_fusion.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/conv_method.h"
#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class PoolFusion {
 public:
  PoolFusion(const Graph& graph, bool direct_only)
      : graph_(graph), direct_only_(direct_only), match_(&graph), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) Find(id);
    for (int id = 0; id < count; ++id) {
      if (absorbed_.contains(id)) continue;
      if (heads_.contains(id)) {
        EmitForward(id);
      } else if (gradients_.contains(id)) {
        EmitGradient(gradients_.at(id));
      } else if (!EmitReader(id)) {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  // A convolution, its relu (or -1), its pooling; then, where there is a backward pass, the
  // pooling's gradient and the last node of the gradient, which is the relu's where there is one.
  struct Chain {
    int conv = -1;
    int relu = -1;
    int pool = -1;
    int unpool = -1;
    int gradient = -1;
    bool direct = false;
    // In the new graph.
    Value places;
    Value pooled;  // the gradient of what is pooled, behind the relu
  };

  static bool IsTwoByTwo(const Attrs& attrs) {
    const absl::StatusOr<Window> window = WindowOf(attrs);
    if (!window.ok()) return false;
    bool plain = true;
    for (int axis = 0; axis < 2; ++axis) {
      plain &= window->kernel[axis] == 2 && window->stride[axis] == 2 && window->padding[axis] == 0;
    }
    return plain;
  }

  // `pool` is a max_pool2d of a convolution, with or without relu.
  void Find(int pool) {
    if (!match_.Is(pool, ops::kMaxPool2d) || !IsTwoByTwo(graph_.node(pool).attrs)) return;
    Chain chain;
    chain.pool = pool;
    chain.conv = match_.Input(pool, 0);
    if (match_.Is(chain.conv, ops::kRelu)) {
      chain.relu = chain.conv;
      chain.conv = match_.Input(chain.relu, 0);
      if (match_.Readers(chain.conv).size() != 1) return;
    }
    const Node& conv = graph_.node(chain.conv);
    if (!match_.Is(chain.conv, ops::kConv2d) || conv.inputs.size() > 3) return;
    if (!match_.IsPlain(chain.conv)) return;
    const absl::StatusOr<ConvGeometry> g =
        ConvOf(graph_.type(conv.inputs[0]), graph_.type(conv.inputs[1]), conv.attrs);
    if (!g.ok() || g->out_height < 2 || g->out_width < 2) return;
    chain.direct = IsForDirect(*g);
    if (!chain.direct && (direct_only_ || !IsForWinograd(*g))) return;
    const std::vector<int>& readers = match_.Readers(match_.Input(pool, 0));
    for (const int reader : readers) {
      if (match_.Is(reader, ops::kMaxPool2dBackward)) SetGradient(reader, &chain);
    }
    for (const int reader : readers) {
      if (reader != pool && reader != chain.unpool && reader != chain.gradient) return;
    }
    if (chain.unpool < 0 || chain.gradient >= 0) Take(chain);
  }

  // `unpool` is the gradient of the pooling; the chain's last node is it or the relu's behind it,
  // which reads the relu's result too.
  void SetGradient(int unpool, Chain* chain) const {
    chain->unpool = unpool;
    if (chain->relu < 0) {
      chain->gradient = unpool;
      return;
    }
    const std::vector<int>& next = match_.Readers(unpool);
    const bool whole = next.size() == 1 && match_.Is(next[0], ops::kReluBackward) &&
                       match_.Input(next[0], 0) == unpool &&
                       match_.Input(next[0], 1) == chain->relu;
    chain->gradient = whole ? next[0] : -1;
  }

  void Take(const Chain& chain) {
    const auto index = chains_.size();
    chains_.push_back(chain);
    heads_[chain.pool] = index;
    absorbed_.insert(chain.conv);
    if (chain.relu >= 0) absorbed_.insert(chain.relu);
    if (chain.unpool < 0) return;
    if (chain.unpool != chain.gradient) absorbed_.insert(chain.unpool);
    gradients_[chain.gradient] = index;
  }

  void EmitForward(int pool) {
    Chain& chain = chains_[heads_.at(pool)];
    const Node& conv = graph_.node(chain.conv);
    Attrs attrs = conv.attrs;
    if (chain.relu >= 0) attrs.Set("activation", std::string("relu"));
    Graph& to = rewriter_.to();
    const Value made = to.Add(ops::kConv2dMaxPool, rewriter_.Map(conv.inputs), attrs, conv.name);
    rewriter_.Replace({pool, 0}, made);
    chain.places = {made.node, 1};
    // No value of the graph before is it: a name of its own, the same in every plan of the job.
    to.SetOrigin(chain.places, {-1 - graph_.Origin({pool, 0}).node, 1});
  }

  // The gradient of what is pooled; spread over the pixels only where a reader needs that.
  void EmitGradient(size_t index) {
    Chain& chain = chains_[index];
    Graph& to = rewriter_.to();
    chain.pooled = rewriter_.Map(graph_.node(chain.unpool).inputs[0]);
    if (chain.relu >= 0) {
      chain.pooled =
          to.Add(ops::kReluBackward, {chain.pooled, rewriter_.Map(Value{chain.pool, 0})});
      to.SetOrigin(chain.pooled, {-1 - graph_.Origin({chain.gradient, 0}).node, 0});
    }
    const std::vector<int>& readers = match_.Readers(chain.gradient);
    const bool spread = std::any_of(readers.begin(), readers.end(),
                                    [&](int reader) { return !TakesPooled(chain, reader); });
    if (!spread) return;
    const Shape shape = graph_.node(chain.unpool).outputs[0].shape;
    rewriter_.Replace({chain.gradient, 0}, to.Add(ops::kMaxUnpool2d, {chain.pooled, chain.places},
                                                  {{"extents", Shape{shape[1], shape[2]}}}));
  }

  // Returns whether a reader of the gradient can do with the pooled one: a sum of all pixels (by
  // way of a view) and a direct weight gradient.
  bool TakesPooled(const Chain& chain, int reader) const {
    if (match_.Is(reader, ops::kConv2dBackwardWeight)) {
      return chain.direct && match_.Input(reader, 0) == chain.gradient &&
             match_.Input(reader, 1) != chain.gradient;
    }
    if (!match_.Is(reader, ops::kReshape)) return false;
    const std::vector<int>& sums = match_.Readers(reader);
    return std::all_of(sums.begin(), sums.end(), [&](int sum) {
      return match_.Is(sum, ops::kBiasBackward) &&
             graph_.node(reader).outputs[0].shape[1] ==
                 graph_.node(chain.gradient).outputs[0].shape[3];
    });
  }

  // Emits `id` on a pooled gradient; false: it is not to be.
  bool EmitReader(int id) {
    const Node& node = graph_.node(id);
    if (node.inputs.empty()) return false;
    const auto found = gradients_.find(node.inputs[0].node);
    if (found == gradients_.end()) return false;
    const Chain& chain = chains_[found->second];
    if (!TakesPooled(chain, id)) return false;
    Graph& to = rewriter_.to();
    if (match_.Is(id, ops::kReshape)) {
      const Shape shape = to.type(chain.pooled).shape;
      const Shape rows = {shape[0] * shape[1] * shape[2], shape[3]};
      const Value made = to.Add(ops::kReshape, {chain.pooled}, {{"shape", rows}}, node.name);
      rewriter_.Replace({id, 0}, made);
      // It is another view than the one before.
      to.SetOrigin(made, {-1 - graph_.Origin({id, 0}).node, 0});
      return true;
    }
    rewriter_.Replace({id, 0}, to.Add(ops::kConv2dMaxPoolBackwardWeight,
                                      {chain.pooled, chain.places, rewriter_.Map(node.inputs[1])},
                                      node.attrs, node.name));
    return true;
  }

  const Graph& graph_;
  const bool direct_only_;
  const GraphMatcher match_;
  Rewriter rewriter_;
  std::vector<Chain> chains_;
  std::map<int, size_t> heads_;      // a pooling's chain
  std::map<int, size_t> gradients_;  // the chain of a gradient's last node
  std::set<int> absorbed_;
};

}  // namespace

Graph FusePools(const Graph& graph, bool direct_only) {
  return PoolFusion(graph, direct_only).Run();
}

}  // namespace lockstep::engine
