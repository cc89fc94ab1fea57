// SPDX-License-Identifier: Apache-2.0
// The head of a model with many classes and its loss, where nothing else reads the logits:
//   softmax_cross_entropy and its gradient of linear(x, w, b?), and the linear layer's gradients
//                                                -> linear_softmax_cross_entropy(x, w, .., b?)
// which never has all logits in memory. What counts as many is a rule on shapes alone: more rows
// than are done at once, and enough columns for the logits to be large beside x and w.
// Thread-safety: pure function.
#ifndef LOCKSTEP_ENGINE_PASSES_HEAD_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_HEAD_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// `graph` with this pattern replaced. It comes before the other fusions.
Graph FuseHeads(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_HEAD_FUSION_H_
