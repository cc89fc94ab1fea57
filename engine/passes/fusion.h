// SPDX-License-Identifier: Apache-2.0
// Fusion by pattern. What is fused depends on the graph alone, never on the machine's free memory
// or timing:
//   relu(linear(x, w, b))                               -> linear with activation=relu
//   relu_backward(linear_backward_input(dy, w), y)      -> linear_backward_input(dy, w, y)
//   softmax_cross_entropy + its backward (+ the bias_backward of that)
//                                                       -> softmax_cross_entropy_with_gradient
//   add(dropout(x), r) and sums of some gradients       -> the op with r as its last operand
// and those of images (image_fusion.h), smooth activations (activation_fusion.h), pooling
// (pool_fusion.h), heads (head_fusion.h) and a GPU's products (epilogue_fusion.h).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_FUSION_H_

#include "engine/graph/graph.h"
#include "engine/passes/epilogue_fusion.h"

namespace lockstep::engine {

// Patterns: those that are not for every plan are off.
struct FusionOptions {
  bool activations = false;        // those of activation_fusion.h
  bool pools = false;              // those of pool_fusion.h
  bool direct_pools_only = false;  // and not those of Winograd's convolutions, with `pools`
  // add(linear(x, w, b), r), add(linear_backward_input(dy, w), r) -> one node
  bool addends = false;
  EpilogueOptions epilogues = {};  // those of epilogue_fusion.h
  bool heads = false;              // those of head_fusion.h
  bool relu = true;                // relu and its gradient in linear layers
  bool residuals = true;           // sums in dropout, layer norm's and embedding's gradients
  bool images = true;              // those of FuseImagePairs
  bool norms = true;               // those of FoldBatchNorms
  bool loss = true;                // softmax cross-entropy with its gradient
  bool loss_bias = false;  // and with the gradient of the bias of the layer before, with `loss`
};

// A graph with the same outputs in which these patterns are one node each.
Graph Fuse(const Graph& graph, const FusionOptions& options = {});

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_FUSION_H_
