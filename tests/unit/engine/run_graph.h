// SPDX-License-Identifier: Apache-2.0
// Runs a graph of fp32 leaves as its memory plan says, for tests of passes. Thread-safety: pure
// function.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_RUN_GRAPH_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_RUN_GRAPH_H_

#include <map>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/passes/memory.h"

namespace lockstep::engine {

using Tensors = std::map<std::string, std::vector<float>>;

// Where the leaves lie for a plan: in `leaves`, by name, which must stay where it is.
std::map<Value, Storage> BindTensors(const Graph& graph, Tensors* leaves);

// The graph's outputs, computed in an arena that holds NaN at first.
Tensors RunGraph(const Graph& graph, Tensors leaves, const MemoryOptions& options = {});

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_RUN_GRAPH_H_
