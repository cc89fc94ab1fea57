// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/isa.h"

#include "absl/strings/str_cat.h"

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

absl::StatusOr<Isa> ChooseIsa(const std::string& name) {
  if (name.empty()) return DetectIsa();
  for (const Isa isa : {Isa::kSse2, Isa::kAvx2, Isa::kAvx512}) {
    if (name != Name(isa)) continue;
    // Each contains those before it.
    if (isa <= DetectIsa()) return isa;
    return absl::InvalidArgumentError(
        absl::StrCat("this CPU has no ", name, "; its best is ", Name(DetectIsa())));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no instruction set '", name, "': there are sse2, avx2 and avx512"));
}

}  // namespace lockstep::engine
