// SPDX-License-Identifier: Apache-2.0
// Fusion by pattern. What is fused depends on the graph alone, never on the machine's free memory
// or timing:
//   relu(linear(x, w, b))                               -> linear with activation=relu
//   relu_backward(linear_backward_input(dy, w), y)      -> linear_backward_input(dy, w, y)
//   softmax_cross_entropy + its backward                -> softmax_cross_entropy_with_gradient
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// A graph with the same outputs in which these patterns are one node each.
Graph Fuse(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_FUSION_H_
