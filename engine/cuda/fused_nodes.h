// SPDX-License-Identifier: Apache-2.0
// Kernels of groups of nodes (passes/launch_groups.h). Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_FUSED_NODES_H_
#define LOCKSTEP_ENGINE_CUDA_FUSED_NODES_H_

#include "engine/cuda/kernel.h"
#include "engine/exec/plan.h"

namespace lockstep::engine::cuda {

// One launch for the nodes `first` to `last` of the program, a group of LaunchGroups with more than
// one node. Errors: as CudaKernelDef::prepare.
absl::StatusOr<CudaKernel> PrepareGroup(const Program& program, int first, int last,
                                        const CudaTarget& target);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_FUSED_NODES_H_
