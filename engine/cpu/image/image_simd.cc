// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/image_simd.h"

namespace lockstep::engine {

const ImageSimd& ImageSimdFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512:
      return simd::kAvx512Image;
    case Isa::kAvx2:
      return simd::kAvx2Image;
    case Isa::kPortable:
      break;
  }
  return simd::kPortableImage;
}

}  // namespace lockstep::engine
