// SPDX-License-Identifier: Apache-2.0
// What a thread does between two looks at a word that another one changes. Thread-safety:
// thread-safe.
#ifndef LOCKSTEP_COMMON_RELAX_H_
#define LOCKSTEP_COMMON_RELAX_H_

namespace lockstep {

// Tells the CPU that this thread spins: what shares its core runs on meanwhile.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_RELAX_H_
