// SPDX-License-Identifier: Apache-2.0
// Smooth activations (gelu in both forms, silu) within the products before them:
//   gelu(linear(x, w, b)) -> linear with activation=gelu
// where nothing else reads the product, as a backward pass would. The bits are those of the nodes
// by themselves in fp32; in 16 bits a rounding less.
// Thread-safety: pure function.
#ifndef LOCKSTEP_ENGINE_PASSES_ACTIVATION_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_ACTIVATION_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// `graph` with these patterns replaced.
Graph FuseActivations(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_ACTIVATION_FUSION_H_
