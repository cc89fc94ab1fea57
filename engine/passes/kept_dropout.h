// SPDX-License-Identifier: Apache-2.0
// Dropout in attention, on a graph with its types (passes/precision.h):
//   attention, attention_backward -> with dropout's bits as an output of the one and an operand of
//   the other (ops::kKeepsDropoutAttr)
// where the back end wants it: the forward pass draws the random numbers anyway, and the backward
// pass does not draw them again. An attention that is made again (passes/recompute.h) leaves them
// again, and the first one does not. The bits of all results are the same.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_KEPT_DROPOUT_H_
#define LOCKSTEP_ENGINE_PASSES_KEPT_DROPOUT_H_

#include "engine/graph/backend.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// A graph with the same outputs in which such gradients read bits.
Graph KeepDropout(const Graph& graph, const Backend& backend);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_KEPT_DROPOUT_H_
