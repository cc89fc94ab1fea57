// SPDX-License-Identifier: Apache-2.0
// How long each instruction set's kernels take on this CPU, by class of work: a few typical nodes
// as training has them, packing and conversions included, for some milliseconds on one thread.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_EXEC_KERNEL_TIMING_H_
#define LOCKSTEP_ENGINE_EXEC_KERNEL_TIMING_H_

#include <vector>

#include "absl/types/span.h"
#include "engine/cpu/kernel.h"

namespace lockstep::engine {

// Returns the least processor time of several runs of each candidate, in microseconds. Blocks for
// 15 ms at most. REQUIRES: this CPU has the candidates.
std::vector<double> TimeKernels(OpClass op_class, absl::Span<const Isa> candidates);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_KERNEL_TIMING_H_
