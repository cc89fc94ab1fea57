// SPDX-License-Identifier: Apache-2.0
// Max pooling within the convolution before it, and their gradients on the pooled values:
//   max_pool2d(conv2d(x, w, b)), or of its relu        -> conv2d_max_pool(x, w, b), which also
//   gives
//                                                         the places of the values
//   bias_backward(max_pool2d_backward(dy, ..))         -> bias_backward(dy)
//   conv2d_backward_weight(max_pool2d_backward(..), x) -> conv2d_max_pool_backward_weight(dy,
//                                                         places, x) where that is done directly
//   max_pool2d_backward(dy, ..) of other readers       -> max_unpool2d(dy, places)
// With a relu between, dy is relu_backward(dy, pooled): relu keeps the order of values, so it may
// as well come after the pooling, on a quarter of them.
//
// Windows are 2 x 2 without overlap, and the convolution is one whose kernel pools as it goes: a
// rule on its shape alone.
// Thread-safety: pure function.
#ifndef LOCKSTEP_ENGINE_PASSES_POOL_FUSION_H_
#define LOCKSTEP_ENGINE_PASSES_POOL_FUSION_H_

#include "engine/graph/graph.h"

namespace lockstep::engine {

// `graph` with these patterns replaced, or those of direct convolutions only. It comes before the
// other fusions.
Graph FusePools(const Graph& graph, bool direct_only = false);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_POOL_FUSION_H_
