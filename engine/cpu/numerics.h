// SPDX-License-Identifier: Apache-2.0
// Floating point settings of a thread.
// Thread-safety: each call acts on the calling thread.
#ifndef LOCKSTEP_ENGINE_CPU_NUMERICS_H_
#define LOCKSTEP_ENGINE_CPU_NUMERICS_H_

namespace lockstep::engine {

// Flush-to-zero and denormals-are-zero for the calling thread: denormal numbers are up to a hundred
// times slower and would make a step's time depend on its data. It belongs to what each op is
// (docs/same_bits.md), so every thread that runs a kernel does this first; it costs nothing again.
void FlushDenormals();
// Returns whether the calling thread has done it.
bool FlushesDenormals();

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_NUMERICS_H_
