// SPDX-License-Identifier: Apache-2.0
// Sleeping on 32-bit words in memory that several processes share (futex(2), futex_waitv(2)).
// A sleeper may map the word read-only; so may the waker.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_FUTEX_H_
#define LOCKSTEP_COMMON_FUTEX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace lockstep {

struct FutexWord {
  const std::atomic<uint32_t>* word = nullptr;
  uint32_t expected = 0;
};

// The most words that FutexWaitAny takes.
inline constexpr size_t kMaxFutexWords = 128;

// Blocks while every word still has its expected value, until a wake on one of them, or for
// `timeout` at most; may also return early for no reason, so that callers look again. Kernels
// without futex_waitv (before 5.16) look at all words but the first each millisecond. REQUIRES: 1
// <= words.size() <= kMaxFutexWords.
void FutexWaitAny(absl::Span<const FutexWord> words, absl::Duration timeout);

// Wakes everyone who sleeps on `word`, in every process.
void FutexWakeAll(const std::atomic<uint32_t>* word);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_FUTEX_H_
