// SPDX-License-Identifier: Apache-2.0
// flock(2) that fails when a test wants it to, as on a file system without locks. Linking
// flock_fault.cc replaces the library's. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_FLOCK_FAULT_H_
#define LOCKSTEP_TESTS_FLOCK_FAULT_H_

namespace lockstep {

// The errno value that each call fails with; 0: it works.
extern int flock_error;

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_FLOCK_FAULT_H_
