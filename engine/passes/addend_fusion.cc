// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/addend_fusion.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class AddendFusion {
 public:
  explicit AddendFusion(const Graph& graph)
      : graph_(graph), readers_(graph.Readers()), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) FindProduct(id);
    for (int id = 0; id < count; ++id) {
      if (absorbed_.contains(id)) continue;
      if (products_.contains(id)) {
        Emit(id, products_[id]);
      } else {
        rewriter_.Copy(id);
      }
    }
    return rewriter_.Finish();
  }

 private:
  bool IsFloat(Value value) const { return graph_.type(value).dtype == DType::kF32; }

  // Notes the sum `id` if one of its operands is such a product, which nothing else reads.
  void FindProduct(int id) {
    const Node& sum = graph_.node(id);
    if (sum.op != &ops::kAdd || !IsFloat({id, 0})) return;
    for (size_t i = 0; i < 2; ++i) {
      const int product = sum.inputs[i].node;
      const Node& node = graph_.node(product);
      if (node.op != &ops::kLinearBackwardInput || node.inputs.size() != 2) continue;
      if (!IsFloat(sum.inputs[1 - i]) || sum.inputs[1 - i].node == product) continue;
      if (readers_[static_cast<size_t>(product)][0].size() != 1) continue;
      products_[id] = product;
      absorbed_.insert(product);
      return;
    }
  }

  void Emit(int id, int product) {
    const Node& sum = graph_.node(id);
    const Node& node = graph_.node(product);
    std::vector<Value> inputs = node.inputs;
    inputs.push_back(sum.inputs[sum.inputs[0].node == product ? 1 : 0]);
    Attrs attrs = node.attrs;
    attrs.Set("third", std::string("addend"));
    attrs.Set(kDTypeAttr, std::string(Name(DType::kF32)));
    rewriter_.Replace({id, 0}, rewriter_.to().Add(ops::kLinearBackwardInput, rewriter_.Map(inputs),
                                                  attrs, node.name));
  }

  const Graph& graph_;
  const std::vector<std::vector<std::vector<int>>> readers_;
  Rewriter rewriter_;
  std::map<int, int> products_;  // by sum
  std::set<int> absorbed_;
};

}  // namespace

Graph FuseAddends(const Graph& graph) { return AddendFusion(graph).Run(); }

}  // namespace lockstep::engine
