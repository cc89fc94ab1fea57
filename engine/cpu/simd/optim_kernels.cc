// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/simd/optim_kernels.h"

namespace lockstep::engine {

const OptimKernels& OptimKernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512:
      return simd::kAvx512OptimKernels;
    case Isa::kAvx2:
      return simd::kAvx2OptimKernels;
    case Isa::kPortable:
      break;
  }
  return simd::kPortableOptimKernels;
}

}  // namespace lockstep::engine
