// SPDX-License-Identifier: Apache-2.0
// The nodes of layer normalisation's gradients as arguments of their kernels, for a node by itself
// and for a group. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_LAYER_NORM_NODES_H_
#define LOCKSTEP_ENGINE_CUDA_LAYER_NORM_NODES_H_

#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

// Binds the operands of a `layer_norm_backward_input`; the extents are left alone.
void BindLayerNormGradient(const Operands& o, const CudaContext& context,
                           LayerNormBackwardInputArgs* args);
// The same of a `layer_norm_backward_weight`, with its scratch.
void BindLayerNormSums(const Operands& o, const CudaContext& context,
                       LayerNormBackwardWeightArgs* args);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_LAYER_NORM_NODES_H_
