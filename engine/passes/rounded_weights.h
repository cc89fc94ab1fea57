// SPDX-License-Identifier: Apache-2.0
// Weights in fp32 that products take in bf16, on a graph with its types (passes/precision.h):
//   product(x, cast(weight)) -> product(x, weight)
// where the cast has no other reader and the back end's kernel rounds what it reads: it brings the
// weight into an order of its own anyway, so a copy in bf16 is neither written nor read. The bits
// are the same. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_ROUNDED_WEIGHTS_H_
#define LOCKSTEP_ENGINE_PASSES_ROUNDED_WEIGHTS_H_

#include "engine/graph/backend.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// A graph with the same outputs in which such products read the parameter itself.
Graph RoundWeightsInProducts(const Graph& graph, const Backend& backend);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_ROUNDED_WEIGHTS_H_
