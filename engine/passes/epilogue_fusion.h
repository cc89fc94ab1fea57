// SPDX-License-Identifier: Apache-2.0
// What libraries for matrix products on GPUs can do with a product on the way to memory:
//   gelu(linear(x, w, b)) by tanh, with its gradient
//                  -> linear with activation=gelu_tanh and keep=1, which gives what gelu takes too
//   gelu_backward(linear_backward_input(dy, w), z) of the same
//                  -> linear_backward_input(dy, w, z) with third=gelu_tanh
//   linear_backward_weight(dy, x), bias_backward(dy)
//                  -> linear_backward_weight with sums=1 (or 2, when dy is its second operand)
// The first two are replaced together or not at all.
// Thread-safety: pure function.
#ifndef LOCKSTEP_ENGINE_PASSES_EPILOGUE_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_EPILOGUE_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

struct EpilogueOptions {
  bool gelu = false;  // recomputation cannot make the activation again then
  bool sums = false;
};

// `graph` with these patterns replaced.
Graph FuseEpilogues(const Graph& graph, const EpilogueOptions& options);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_EPILOGUE_FUSION_H_
