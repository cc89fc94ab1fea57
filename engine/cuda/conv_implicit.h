// SPDX-License-Identifier: Apache-2.0
// Convolutions that tensor cores do without patches in memory (kernels/implicit.cu).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_CONV_IMPLICIT_H_
#define LOCKSTEP_ENGINE_CUDA_CONV_IMPLICIT_H_

#include "engine/cuda/conv_plan.h"
#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

// Returns whether types, extents and the places of the operands allow it.
bool CanBeImplicit(const Operands& operands, const ConvPlan& plan);

// The kernel of a conv2d node or of one of its gradients. REQUIRES: CanBeImplicit.
CudaKernel PrepareImplicit(const Operands& operands, const Node& node, const ConvPlan& plan);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CONV_IMPLICIT_H_
