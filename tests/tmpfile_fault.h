// SPDX-License-Identifier: Apache-2.0
// open(2) that makes no files without a name when a test wants it to, as over NFS. Linking
// tmpfile_fault.cc replaces the library's. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_TMPFILE_FAULT_H_
#define LOCKSTEP_TESTS_TMPFILE_FAULT_H_

namespace lockstep {

// The errno value that each call with O_TMPFILE fails with; 0: it works.
extern int tmpfile_error;

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_TMPFILE_FAULT_H_
