// SPDX-License-Identifier: Apache-2.0
// What Abseil checks at each lock of a mutex. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_MUTEX_CHECKS_H_
#define LOCKSTEP_COMMON_MUTEX_CHECKS_H_

namespace lockstep {

// Debian's Abseil is built with its checks for debugging: each lock of a mutex, gRPC's included,
// enters the order in which mutexes are taken into one graph of the process, under one lock, and
// ends the process at a cycle. Programs built with NDEBUG lock without that after this call;
// others, and the tests, keep it. To be called first in main().
void SkipMutexChecksInRelease();

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_MUTEX_CHECKS_H_
