// SPDX-License-Identifier: Apache-2.0
// What the engine asks of the architecture that it is compiled for. One of arch_x86.cc and
// arch_aarch64.cc answers, and holds the lists of its kernels (SimdFor and the like); beside these
// and the kernels themselves, models/normal.cc alone knows which. Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_CPU_ARCH_H_
#define LOCKSTEP_ENGINE_CPU_ARCH_H_

#include <string>

#include "engine/cpu/isa.h"

namespace lockstep::engine {

// Returns whether this CPU fuses a multiplication with an addition in the vectors that the portable
// kernels are compiled for.
bool CpuFusesProducts();
// The best set that this CPU and operating system have. kPortable, too, where nothing is fused.
Isa CpuIsa();
// Its maker's name for this CPU, such as "AMD EPYC 7763 64-Core Processor".
std::string CpuName();
// Returns what else tells CPUs apart for which kernels are chosen: "signature a20f10, avx2".
std::string CpuSignature();
// The widest fused multiplications and additions of `isa`, for some milliseconds, as fast as the
// CPU can; returns the floating point operations done. REQUIRES: CpuFusesProducts(), and this CPU
// has `isa`.
double RunFmaLoop(Isa isa);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_ARCH_H_
