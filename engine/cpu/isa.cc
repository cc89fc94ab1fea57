// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/isa.h"

#include <cpuid.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "engine/cpu/self_check.h"

namespace lockstep::engine {

Isa CpuIsa() {
  // __builtin_cpu_supports also asks the operating system (XGETBV).
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
  return Isa::kSse2;
}

std::string CpuName() {
  constexpr unsigned kFirst = 0x80000002, kLast = 0x80000004;
  char name[(kLast - kFirst + 1) * 16 + 1] = {};
  for (unsigned leaf = kFirst; leaf <= kLast; ++leaf) {
    unsigned registers[4] = {};
    if (!__get_cpuid(leaf, &registers[0], &registers[1], &registers[2], &registers[3])) return "?";
    std::memcpy(name + (leaf - kFirst) * sizeof registers, registers, sizeof registers);
  }
  return std::string(absl::StripAsciiWhitespace(name));
}

Isa DetectIsa() {
  static const Isa isa =
      HighestSound(CpuIsa(), TablesFor, [](const std::string& why) { LS_LOG_WARNING << why; });
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
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "?";
}

absl::StatusOr<Isa> ChooseIsa(const std::string& name) {
  if (name.empty()) return DetectIsa();
  for (const Isa isa : {Isa::kSse2, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (name != Name(isa)) continue;
    if (isa <= DetectIsa()) return isa;
    if (isa <= CpuIsa()) {
      return absl::InvalidArgumentError(absl::StrCat("not all kernels for ", name,
                                                     " give right results on this CPU: the log "
                                                     "names the first wrong one; ",
                                                     Name(DetectIsa()), " is the best that do"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("this CPU has no ", name, "; its best is ", Name(DetectIsa())));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no instruction set '", name, "': there are sse2, avx2, avx512 and avx512_bf16"));
}

}  // namespace lockstep::engine
