// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/isa.h"

#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cpu/arch.h"
#include "engine/cpu/self_check.h"

namespace lockstep::engine {
namespace {

constexpr Isa kAll[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

std::string Names() {
  return absl::StrJoin(kAll, ", ", [](std::string* out, Isa isa) { *out += Name(isa); });
}

}  // namespace

absl::Status CheckCpu() {
  if (CpuFusesProducts()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this CPU (", CpuName(), ") has no AVX2 and FMA, without which it would compute ",
      "other bits than all others: run on a CPU from 2013 (Intel), 2015 (AMD) or later"));
}

Isa DetectIsa() {
  static const Isa isa =
      HighestSound(CpuIsa(), TablesFor, [](const std::string& why) { LS_LOG_WARNING << why; });
  return isa;
}

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "?";
}

std::vector<Isa> UsableIsas() {
  return {std::begin(kAll), std::begin(kAll) + static_cast<int>(DetectIsa()) + 1};
}

std::string ForcedIsa() {
  const char* const forced = std::getenv(kIsaVariable);
  return forced == nullptr ? "" : forced;
}

absl::StatusOr<Isa> ChooseIsa(const std::string& name) {
  LS_RETURN_IF_ERROR(CheckCpu());
  if (name.empty()) {
    const std::string forced = ForcedIsa();
    if (forced.empty()) return DetectIsa();
    absl::StatusOr<Isa> isa = ChooseIsa(forced);
    if (isa.ok()) return isa;
    return absl::InvalidArgumentError(absl::StrCat(kIsaVariable, ": ", isa.status().message()));
  }
  for (const Isa isa : kAll) {
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
  return absl::InvalidArgumentError(
      absl::StrCat("no instruction set '", name, "': there are ", Names()));
}

}  // namespace lockstep::engine
