// SPDX-License-Identifier: Apache-2.0
// Copies a graph node by node while a pass replaces some of them.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_ENGINE_PASSES_REWRITER_H_
#define LOCKSTEP_ENGINE_PASSES_REWRITER_H_

#include <algorithm>
#include <map>
#include <vector>

#include "common/check.h"
#include "engine/graph/graph.h"
#include "engine/graph/op.h"

namespace lockstep::engine {

class Rewriter {
 public:
  // `from` outlives the rewriter.
  explicit Rewriter(const Graph* from) : from_(*from) {}

  // Copies node `id` as it is.
  void Copy(int id) {
    const Node& node = from_.node(id);
    if (node.op->leaf) {
      Replace({id, 0}, to_.AddLeaf(*node.op, node.outputs[0], node.name));
    } else {
      Remake(id, Map(node.inputs), node.attrs);
    }
  }
  // Node `id` with these operands, of the new graph, and attributes; it may have more outputs.
  // Returns its first.
  Value Remake(int id, const std::vector<Value>& inputs, const Attrs& attrs) {
    const Node& node = from_.node(id);
    const Value made = to_.Add(*node.op, inputs, attrs, node.name);
    ReplaceOutputs(id, made);
    return made;
  }
  // The outputs of node `id` are those of the node of `made` from here on.
  void ReplaceOutputs(int id, Value made) {
    for (int o = 0; o < static_cast<int>(from_.node(id).outputs.size()); ++o) {
      Replace({id, o}, {made.node, o});
    }
  }
  // `value` of the old graph is `made` of the new one from here on.
  void Replace(Value value, Value made) {
    map_[value] = made;
    to_.SetOrigin(made, from_.Origin(value));
  }
  bool Has(Value value) const { return map_.contains(value); }
  // Returns what stands for a value of the old graph in the new one. REQUIRES: Has(value).
  Value Map(Value value) const {
    const auto it = map_.find(value);
    LS_CHECK(it != map_.end()) << "%" << value.node << " is used before it is made";
    return it->second;
  }
  // The same for each.
  std::vector<Value> Map(const std::vector<Value>& values) const {
    std::vector<Value> mapped;
    for (const Value& value : values) mapped.push_back(Map(value));
    return mapped;
  }
  // The new graph, to append to.
  Graph& to() { return to_; }
  // The new graph with the old one's outputs and boundaries. A boundary that is no value of its own
  // any more is where its block is left now.
  Graph Finish() {
    for (const Value& value : from_.boundaries()) {
      const Value left = Absorbing(value);
      const std::vector<Value>& set = to_.boundaries();
      if (left.valid() && (set.empty() || set.back() != left)) to_.AddBoundary(left);
    }
    for (const auto& [name, value] : from_.outputs()) to_.AddOutput(name, Map(value));
    return std::move(to_);
  }

 private:
  // Returns what stands for `value`, or else for the first value that was made of it; invalid where
  // nothing does.
  Value Absorbing(Value value) const {
    int id = value.node;
    while (!Has(value)) {
      const auto reads = [&](const Value& input) { return input == value; };
      do {
        if (++id == static_cast<int>(from_.nodes().size())) return Value();
      } while (std::none_of(from_.node(id).inputs.begin(), from_.node(id).inputs.end(), reads));
      value = {id, 0};
    }
    return Map(value);
  }

  const Graph& from_;
  Graph to_;
  std::map<Value, Value> map_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_REWRITER_H_
