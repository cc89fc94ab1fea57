// SPDX-License-Identifier: Apache-2.0
// Smooth activations (gelu in both forms, silu) within the products before them:
//   gelu(linear(x, w, b))                              -> linear with activation=gelu
//   gelu_backward(linear_backward_input(dy, w), z)     -> linear_backward_input(dy, w, slope)
// Where there is a backward pass, the linear node keeps the activation's slope instead of what the
// activation takes: value and slope share their exponential, and the backward pass is left with a
// product. Both patterns must match then, or neither is replaced. The bits are those of the nodes
// by themselves in fp32. Rounded to 16 bits, a slope would be another approximation than what it
// stands for, and recomputation could not make the activation again: callers leave the pass out
// there.
// Thread-safety: pure function.
#ifndef LOCKSTEP_ENGINE_PASSES_ACTIVATION_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_ACTIVATION_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// `graph` with these patterns replaced.
Graph FuseActivations(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_ACTIVATION_FUSION_H_
