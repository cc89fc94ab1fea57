// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/remade_norms.h"

#include <algorithm>
#include <map>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/launch_groups.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

class RemadeNorms {
 public:
  explicit RemadeNorms(const Graph& graph)
      : graph_(graph), readers_(graph.Readers()), rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) FindSums(id);
    for (int id = 0; id < count; ++id) {
      const auto norm = norms_.find(id);
      if (norm == norms_.end()) {
        rewriter_.Copy(id);
      } else {
        Emit(id, norm->second);
      }
    }
    return rewriter_.Finish();
  }

 private:
  const std::vector<int>& ReadersOf(Value value) const {
    return readers_[static_cast<size_t>(value.node)][static_cast<size_t>(value.output)];
  }

  // Notes the sums that read the normalisation `id`, if they and its cast are all that reads it.
  void FindSums(int id) {
    const Node& norm = graph_.node(id);
    if (norm.op != &ops::kLayerNorm || norm.outputs[0].dtype != DType::kF32) return;
    const Value made{id, 0};
    std::vector<int> sums;
    for (const int reader : ReadersOf(made)) {
      if (reader >= static_cast<int>(graph_.nodes().size())) return;  // an output
      if (reader == id + 1 && graph_.node(reader).op == &ops::kCast) continue;
      if (!NormsResidual(graph_, reader, made)) return;
      sums.push_back(reader);
    }
    if (sums.empty() || !IsReadAfter(norm.inputs[0], sums.back())) return;
    for (const int sum : sums) norms_[sum] = id;
  }
  bool IsReadAfter(Value value, int id) const {
    const std::vector<int>& readers = ReadersOf(value);
    return std::any_of(readers.begin(), readers.end(), [&](int reader) { return reader > id; });
  }

  // The sum `id`, behind another node of the normalisation `norm`.
  void Emit(int id, int norm) {
    const Node& own = graph_.node(norm);
    const Value again = rewriter_.to().Add(*own.op, rewriter_.Map(own.inputs), own.attrs, own.name);
    for (int o = 0; o < static_cast<int>(own.outputs.size()); ++o) {
      rewriter_.to().SetOrigin({again.node, o}, graph_.Origin({norm, o}));
    }
    const Node& sum = graph_.node(id);
    std::vector<Value> inputs;
    for (const Value& input : sum.inputs) {
      inputs.push_back(input == Value{norm, 0} ? again : rewriter_.Map(input));
    }
    const Value made = rewriter_.to().Add(*sum.op, inputs, sum.attrs, sum.name);
    rewriter_.Replace({id, 0}, made);
  }

  const Graph& graph_;
  const std::vector<std::vector<std::vector<int>>> readers_;
  Rewriter rewriter_;
  std::map<int, int> norms_;  // by sum
};

}  // namespace

Graph RemakeNorms(const Graph& graph) { return RemadeNorms(graph).Run(); }

}  // namespace lockstep::engine
