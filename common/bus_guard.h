// SPDX-License-Identifier: Apache-2.0
// Keeps a mapped file that is truncated, or whose disk fails, from ending the process. The kernel
// sends SIGBUS to whoever reads a page that is not there any more. For addresses that are guarded
// here the handler puts pages of zeros in the rest of the mapping and marks it; the read goes on
// with zeros, and whoever reads asks for the mark before it uses what it read. SIGBUS from any
// other address is what it was before.
//
// The handler is the process's, installed with the first range. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_BUS_GUARD_H_
#define LOCKSTEP_COMMON_BUS_GUARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// A guarded mapping. Guards live for the whole program and are used again, so that the handler may
// look at one at any time. What each call and the handler take does not grow with their number.
class BusGuard {
 public:
  // Guards [data, data + bytes), which was mapped from a file; never null. Released before the
  // range is unmapped.
  static BusGuard* Guard(void* data, size_t bytes, bool writable);
  void Release();

  // Returns whether zeros have taken the place of something in it. Asked after reading; it sees the
  // mark of any zeros that were read.
  bool hit() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return hit_.load(std::memory_order_acquire);
  }

 private:
  friend void OnBusError(int, void*);
  // Returns whether `address` lies in it, and zeros were put there.
  bool Take(uintptr_t address);

  std::atomic<uintptr_t> begin_{0};  // 0: not in use
  std::atomic<uintptr_t> end_{0};
  std::atomic<bool> writable_{false};
  std::atomic<bool> hit_{false};
  BusGuard* next_ = nullptr;  // of those that are not in use
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_BUS_GUARD_H_
