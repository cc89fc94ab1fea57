// SPDX-License-Identifier: Apache-2.0
// A flag that ends waits, with its reason. Set once; the first reason stays.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COLLECTIVES_ABORT_FLAG_H_
#define LOCKSTEP_COLLECTIVES_ABORT_FLAG_H_

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/futex.h"

namespace lockstep {

class AbortFlag {
 public:
  void Set(const std::string& reason) {
    {
      absl::MutexLock lock(&mu_);
      if (IsSet()) return;
      reason_ = reason;
      word_.store(1, std::memory_order_release);
    }
    FutexWakeAll(&word_);
    if (const int wake = wake_.load(std::memory_order_acquire); wake >= 0) ::eventfd_write(wake, 1);
  }
  // An eventfd to be written when it is set; -1: none any more. For those that wait for
  // descriptors.
  void WakeAlso(int eventfd) { wake_.store(eventfd, std::memory_order_release); }
  bool IsSet() const { return word_.load(std::memory_order_acquire) != 0; }
  // Aborted with the reason. REQUIRES: IsSet().
  absl::Status status() const {
    absl::MutexLock lock(&mu_);
    return absl::AbortedError(reason_);
  }
  // For sleepers: 0 until it is set.
  const std::atomic<uint32_t>* word() const { return &word_; }

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<int> wake_{-1};
  mutable absl::Mutex mu_;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ABORT_FLAG_H_
