// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/isa.h"

namespace lockstep::engine {

Isa DetectIsa() {
  // __builtin_cpu_supports also asks the operating system (XGETBV).
  static const Isa isa = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
      return Isa::kAvx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
    return Isa::kSse2;
  }();
  return isa;
}

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kSse2:
      return "sse2";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace lockstep::engine
