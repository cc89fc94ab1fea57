// SPDX-License-Identifier: Apache-2.0
// The parts of the module's tables.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_RUNTIME_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_RUNTIME_H_

#include "engine/cuda/kernels/tables.h"

namespace lockstep::engine::cuda {

extern const Runtime kRuntime;
extern const Kernels kKernels;
extern const Matmul kMatmul;

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_RUNTIME_H_
