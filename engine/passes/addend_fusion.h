// SPDX-License-Identifier: Apache-2.0
// Sums that a GPU's library makes with the product before them, on a graph with its types
// (passes/precision.h):
//   add(linear_backward_input(dy, w), x)  -> linear_backward_input(dy, w, x) third=addend
// where the sum and x are fp32: the product is not rounded on the way, and neither written nor read
// again. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_ADDEND_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_ADDEND_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// A graph with the same outputs in which these patterns are one node each.
Graph FuseAddends(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_ADDEND_FUSION_H_
