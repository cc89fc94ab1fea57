// SPDX-License-Identifier: Apache-2.0
// The instruction sets that kernels are written for. They compute the same bits
// (docs/same_bits.md), so which one does what is a
// matter of speed (exec/kernel_choice.h). Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_CPU_ISA_H_
#define LOCKSTEP_ENGINE_CPU_ISA_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::engine {

// Each contains those before it. The first one is plain vectors, which every architecture has;
// compiled for x86-64 they take AVX2 and FMA.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

// Names the set to use, instead of the best one.
inline constexpr char kIsaVariable[] = "LOCKSTEP_ISA";

// Checks whether this CPU can run our kernels at all. Errors: FailedPrecondition for a CPU that
// does not fuse a multiplication with an addition: it would compute other bits.
absl::Status CheckCpu();
// The best one that this CPU has and whose kernels give right results on it (cpu/self_check.h).
Isa DetectIsa();
// All from kPortable to DetectIsa().
std::vector<Isa> UsableIsas();
// "portable", "avx2", "avx512", "avx512_bf16".
const char* Name(Isa isa);
// Returns what LOCKSTEP_ISA says; "": nothing.
std::string ForcedIsa();
// The named one; for "", the one that LOCKSTEP_ISA names or else the best one. Errors:
// InvalidArgument for a name that is none or that this CPU does not have; those of CheckCpu.
absl::StatusOr<Isa> ChooseIsa(const std::string& name);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_ISA_H_
