// SPDX-License-Identifier: Apache-2.0
#include "common/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "common/check.h"

namespace lockstep {
namespace {

// Set once the kernel has said that it has no futex_waitv, or a sandbox forbids it.
std::atomic<bool> no_waitv{false};

void WaitOne(const FutexWord& word, absl::Duration timeout) {
  const timespec relative = absl::ToTimespec(timeout);
  // The result does not matter: woken, changed, timed out and interrupted all mean "look again".
  ::syscall(SYS_futex, word.word, FUTEX_WAIT, word.expected, &relative, nullptr, 0);
}

// Returns false when the kernel cannot.
bool WaitVector(absl::Span<const FutexWord> words, absl::Duration timeout) {
#ifdef SYS_futex_waitv
  futex_waitv vector[kMaxFutexWords] = {};
  for (size_t i = 0; i < words.size(); ++i) {
    vector[i].uaddr = reinterpret_cast<uintptr_t>(words[i].word);
    vector[i].val = words[i].expected;
    vector[i].flags = FUTEX_32;
  }
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec until = absl::ToTimespec(absl::DurationFromTimespec(now) + timeout);
  const long result = ::syscall(SYS_futex_waitv, vector, static_cast<unsigned>(words.size()), 0,
                                &until, CLOCK_MONOTONIC);
  return result >= 0 || (errno != ENOSYS && errno != EPERM);
#else
  return false;
#endif
}

}  // namespace

void FutexWaitAny(absl::Span<const FutexWord> words, absl::Duration timeout) {
  LS_CHECK(!words.empty() && words.size() <= kMaxFutexWords) << words.size();
  if (timeout <= absl::ZeroDuration()) return;
  // Far enough to be forever, near enough for every kernel's arithmetic.
  timeout = std::min(timeout, absl::Hours(24));
  if (words.size() == 1) return WaitOne(words[0], timeout);
  if (!no_waitv.load(std::memory_order_relaxed)) {
    if (WaitVector(words, timeout)) return;
    no_waitv.store(true, std::memory_order_relaxed);
  }
  for (const FutexWord& word : words) {
    if (word.word->load(std::memory_order_acquire) != word.expected) return;
  }
  WaitOne(words[0], std::min(timeout, absl::Milliseconds(1)));
}

void FutexWakeAll(const std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep
