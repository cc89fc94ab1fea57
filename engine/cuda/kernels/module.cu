// SPDX-License-Identifier: Apache-2.0
// The module's one symbol. LOCKSTEP_CUDA_ARCHITECTURES names what it was compiled for.
#include <cuda_runtime.h>

#include "common/cuda_version.h"
#include "engine/cuda/kernels/runtime.h"

static_assert(CUDART_VERSION / 1000 == lockstep::kCudaMajor,
              "another CUDA: change common/cuda_version.h, with the driver that it needs");

#ifdef LOCKSTEP_SM90A
#define LS_WARPGROUPS true
#else
#define LS_WARPGROUPS false
#endif
#define LS_TEXT_OF(x) #x
#define LS_TEXT(x) LS_TEXT_OF(x)

extern "C" __attribute__((visibility("default"))) const lockstep::engine::cuda::Tables*
lockstep_cuda_tables() {
  using namespace lockstep::engine::cuda;
  static const Tables tables = {
      kTablesVersion, "CUDA " LS_TEXT(CUDART_VERSION) " for " LS_TEXT(LOCKSTEP_CUDA_ARCHITECTURES),
      LS_WARPGROUPS,  &kRuntime,
      &kKernels,      &kMatmul};
  return &tables;
}
