// SPDX-License-Identifier: Apache-2.0
// How often a test's program has asked for heap memory, and how much of it is in use. Linking
// heap_watch.cc replaces malloc and its kin, so not under a sanitizer, which has its own.
// Thread-safety: any thread.
#ifndef LOCKSTEP_TESTS_HEAP_WATCH_H_
#define LOCKSTEP_TESTS_HEAP_WATCH_H_

#include <cstdint>

namespace lockstep {

struct HeapState {
  int64_t calls = 0;       // so far, of all threads
  int64_t live_bytes = 0;  // in use
};
HeapState HeapNow();

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_HEAP_WATCH_H_
