// SPDX-License-Identifier: Apache-2.0
// Fusion of image ops by pattern, by the graph alone:
//   relu(conv2d)                                    -> conv2d with activation=relu
//   relu(batch_norm), relu(add(batch_norm, r))      -> batch_norm(.., r?) with activation=relu
//   relu_backward(conv2d_backward_input(dy, w), y)  -> conv2d_backward_input(dy, w, y)
//   relu_backward(max_pool2d_backward(dy, y), y)    -> max_pool2d_backward with relu=1
//   batch_norm_backward(relu_backward(dy, y), ..)   -> batch_norm_backward(dy, .., y)
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_IMAGE_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_IMAGE_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// `graph` with every pattern above replaced.
Graph FuseImagePairs(const Graph& graph);
// Before it, outside training:
//   batch_norm_inference(conv2d(x, w))            -> conv2d(x, fold_batch_norm(w, ..))
Graph FoldBatchNorms(const Graph& graph);
// For inference, after FuseImagePairs:
//   relu(add(conv2d(x, w, bias), r))              -> conv2d(x, w, bias, r) with activation=relu
Graph FuseResiduals(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_IMAGE_FUSION_H_
