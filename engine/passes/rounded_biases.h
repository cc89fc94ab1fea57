// SPDX-License-Identifier: Apache-2.0
// Biases in fp32 that a product's kernel rounds to 16 bits before it reads them, on a graph with
// its types (passes/precision.h):
//   product(x, weight, bias) -> product(x, weight, cast(bias))
// so that they are rounded where weights are, by the update or once for all micro-batches, and not
// in a launch of their own before each product. The bits are the same. Thread-safety: pure
// functions.
#ifndef LOCKSTEP_ENGINE_PASSES_ROUNDED_BIASES_H_
#define LOCKSTEP_ENGINE_PASSES_ROUNDED_BIASES_H_

#include "engine/graph/backend.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// A graph with the same outputs in which such products read a parameter's rounded copy, one for all
// who round it to the same type.
Graph RoundBiasesBefore(const Graph& graph, const Backend& backend);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_ROUNDED_BIASES_H_
