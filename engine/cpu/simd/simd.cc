// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/simd/simd.h"

#include "engine/cpu/simd/row_kernels.h"

namespace lockstep::engine {

const SimdKernels& SimdFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
      return simd::kAvx512Bf16Kernels;
    case Isa::kAvx512:
      return simd::kAvx512Kernels;
    case Isa::kAvx2:
      return simd::kAvx2Kernels;
    case Isa::kPortable:
      break;
  }
  return simd::kPortableKernels;
}

const RowKernels& RowKernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512:
      return simd::kAvx512RowKernels;
    case Isa::kAvx2:
      return simd::kAvx2RowKernels;
    case Isa::kPortable:
      break;
  }
  return simd::kPortableRowKernels;
}

}  // namespace lockstep::engine
