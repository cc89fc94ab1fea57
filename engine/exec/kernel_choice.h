// SPDX-License-Identifier: Apache-2.0
// Which instruction set's kernels do each class of work. All compute the same bits
// (docs/same_bits.md), so it is the quickest on this very CPU: measured once (kernel_timing.h) and
// kept in a file, by CPU and by build of the program. Of processes that start at once one measures
// while the others wait for what it writes.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_EXEC_KERNEL_CHOICE_H_
#define LOCKSTEP_ENGINE_EXEC_KERNEL_CHOICE_H_

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cpu/kernel.h"

namespace lockstep::engine {

// "rows", "images", "products", "attention", "convolutions", "bf16 products" ...
const char* Name(OpClass op_class);

struct KernelTime {
  Isa isa = Isa::kPortable;
  double microseconds = 0;
};
struct KernelChoice {
  Isa isa = Isa::kPortable;
  std::vector<KernelTime> times;  // of all candidates; empty: nothing was measured
};
struct KernelChoices {
  std::array<KernelChoice, kOpClasses> of;
  std::string why;  // "measured", "as measured before (FILE)", "LOCKSTEP_ISA"

  // Pairs of bf16 are multiplied where the chosen set has an instruction for it, or as `bf16_pairs`
  // says.
  CpuTargets Targets(int threads, std::optional<bool> bf16_pairs) const;
};

// Returns the sets that targets have: "avx2" where one does all, else the classes of each:
// "rows/images avx2, products/attention ... avx512".
std::string DescribeTargets(const CpuTargets& targets);

// From now on ChooseKernels measures. The results are kept in `file`; "": in this process alone.
// First thing in a program's main.
void MeasureKernels(const std::string& file);

// The choice of this process: all of one set where `isa` or LOCKSTEP_ISA names it, and the CPU's
// best one where MeasureKernels was not called. May block for a twentieth of a second, the first
// time. Errors: those of ChooseIsa.
absl::StatusOr<KernelChoices> ChooseKernels(const std::string& isa);

// ---- what it is made of ----

// As TimeKernels.
using KernelTimer = absl::FunctionRef<std::vector<double>(OpClass, absl::Span<const Isa>)>;

// This CPU and build, as files name them: a line without tabs.
std::string CpuAndBuild();
// Those of `usable` that have kernels of their own for the class, the most capable one last.
std::vector<Isa> CandidatesFor(OpClass op_class, const std::vector<Isa>& usable);
// The quickest. Of those that are as quick within what noise is, the most capable one.
// REQUIRES: `times` in the order of candidates, at least one.
Isa QuickestOf(const std::vector<KernelTime>& times);
// The choices that `file` has for `cpu`; where it has none, those by `timer`, which are then
// written to it. A file that is damaged or cannot be written costs a measurement.
KernelChoices ReadOrMeasure(const std::string& file, const std::string& cpu,
                            const std::vector<Isa>& usable, KernelTimer timer);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_KERNEL_CHOICE_H_
