// SPDX-License-Identifier: Apache-2.0
// What passes ask of the nodes around a node, of a graph that they do not change.
// Thread-safety: const methods from any thread.
#ifndef LOCKSTEP_ENGINE_PASSES_GRAPH_MATCHER_H_
#define LOCKSTEP_ENGINE_PASSES_GRAPH_MATCHER_H_

#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/op.h"

namespace lockstep::engine {

class GraphMatcher {
 public:
  // `graph` outlives the matcher.
  explicit GraphMatcher(const Graph* graph) : graph_(*graph), readers_(graph->Readers()) {}

  // Returns whether node `id` is an `op`. An output of the graph (IsOutput) is none.
  bool Is(int id, const OpDef& op) const { return !IsOutput(id) && graph_.node(id).op == &op; }
  // Returns whether no activation is fused into node `id`.
  bool IsPlain(int id) const {
    return graph_.node(id).attrs.String("activation", "none") == "none";
  }
  // Returns the node that makes operand `i` of node `id`.
  int Input(int id, size_t i) const { return graph_.node(id).inputs[i].node; }
  // Returns the nodes that read output `output` of node `id`, in order; see IsOutput.
  const std::vector<int>& Readers(int id, int output = 0) const {
    return readers_[static_cast<size_t>(id)][static_cast<size_t>(output)];
  }
  // Returns whether a reader is no node but an output of the graph.
  bool IsOutput(int reader) const { return reader >= static_cast<int>(graph_.nodes().size()); }
  // Returns the node that alone reads the only output of node `id`; -1: there is none.
  int OnlyReader(int id) const {
    const auto& outputs = readers_[static_cast<size_t>(id)];
    const bool one = outputs.size() == 1 && outputs[0].size() == 1 && !IsOutput(outputs[0][0]);
    return one ? outputs[0][0] : -1;
  }

 private:
  const Graph& graph_;
  const std::vector<std::vector<std::vector<int>>> readers_;  // by node and output
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_GRAPH_MATCHER_H_
