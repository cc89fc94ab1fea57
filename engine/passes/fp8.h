// SPDX-License-Identifier: Apache-2.0
// The factors of linear layers' products in FP8, as train.fp8 asks for: E4M3 for activations and
// weights, E5M2 for gradients, each with a scale of its own. The first and the last layer with a
// weight stay as they are.
//
// Two passes: the layers are marked before differentiation, which hands the mark on to the
// gradients' products; after the precision pass the factors of what is marked are rounded. A
// value that several products read is rounded once for all of them, a weight for each unless it is
// kept. What the precision pass would round to 16 bits first is taken in fp32.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_FP8_H_
#define LOCKSTEP_ENGINE_PASSES_FP8_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// `graph`, a forward pass that ends in `logits`, with its linear layers marked but for the first
// and the last layer. Its values keep their numbers. Errors: InvalidArgument, there is no such
// layer.
absl::StatusOr<Graph> MarkFp8(const Graph& graph, Value logits);

// `graph` with the factors of what is marked rounded. `keeps_weights`: as for ApplyPrecision.
// REQUIRES: its precision is bf16.
Graph ApplyFp8(const Graph& graph, bool keeps_weights);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_FP8_H_
