// SPDX-License-Identifier: Apache-2.0
// Residuals that are layer normalisations, on a graph with its types (passes/precision.h):
//   y = layer_norm(x), cast(y), layer_norm(add(f, y))
//     -> cast(layer_norm(x)), layer_norm(add(f, layer_norm(x)))
// where y is fp32, nothing else reads it, and x is kept for the backward pass: a GPU makes y in the
// launch of the sum (passes/launch_groups.h), so it is never written, and x is read in its place.
// The add may be a dropout with a residual. The bits are the same. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_REMADE_NORMS_H_
#define LOCKSTEP_ENGINE_PASSES_REMADE_NORMS_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// A graph with the same outputs in which each such sum has a normalisation of its own before it.
Graph RemakeNorms(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_REMADE_NORMS_H_
