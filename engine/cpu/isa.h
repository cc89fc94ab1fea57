// SPDX-License-Identifier: Apache-2.0
// The instruction sets that kernels are written for. One is chosen at the start and pinned; sums
// are in an order that depends on it and on the shape alone. Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_CPU_ISA_H_
#define LOCKSTEP_ENGINE_CPU_ISA_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::engine {

// Each contains those before it.
enum class Isa { kSse2, kAvx2, kAvx512, kAvx512Bf16 };

// The best one that this CPU has and whose kernels give right results on it (cpu/self_check.h).
Isa DetectIsa();
// "sse2", "avx2", "avx512", "avx512_bf16".
const char* Name(Isa isa);
// The named one, or the best one for "". Errors: InvalidArgument for a name that is none or that
// this CPU does not have.
absl::StatusOr<Isa> ChooseIsa(const std::string& name);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_ISA_H_
