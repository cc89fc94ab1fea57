// SPDX-License-Identifier: Apache-2.0
// The table of all kernels.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/runtime.h"

namespace lockstep::engine::cuda {

const Kernels kKernels = {
#define LOCKSTEP_KERNELS(Args, name, Name) .name = Launch##Name,
#include "engine/cuda/kernels/kernel_list.inc"
};

}  // namespace lockstep::engine::cuda
