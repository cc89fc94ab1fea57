// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels, one for each op of ops/op_list.inc that a GPU computes.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_H_

#include "engine/cuda/kernel.h"
#include "engine/graph/op.h"

namespace lockstep::engine {
namespace cuda {

#define LOCKSTEP_OP(Name) extern const CudaKernelDef k##Name;
#define LOCKSTEP_POINTWISE(Name) extern const CudaKernelDef k##Name;
#define LOCKSTEP_CPU_OP(Name)
#define LOCKSTEP_PLAIN_OP(Name)
#include "engine/ops/op_list.inc"

}  // namespace cuda

// Null when `op` has no kernel: a leaf or a view, or OpDef::no_cuda says why.
const CudaKernelDef* FindCudaKernel(const OpDef& op);
// REQUIRES: `op` has one.
const CudaKernelDef& CudaKernelOf(const OpDef& op);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_H_
