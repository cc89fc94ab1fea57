// SPDX-License-Identifier: Apache-2.0
// Life words: how the death of a process on this host is seen within 0.1 ms.
//
// An agent owns one page (a memfd) with a word for each worker that it starts. A worker's main thread
// takes its word as a robust futex; when the thread dies, however that happens, the kernel sets
// FUTEX_OWNER_DIED in the word before it tears the address space down, and wakes a waiter. Peers look
// at the words in their wait loops, the agent waits on them. The bit is never cleared: a replacement
// gets a word of its own.
// See set_robust_list(2) and the kernel's Documentation/locking/robust-futexes.rst.
//
// Thread-safety: Take is called once, by the main thread of a worker; the rest is thread-safe.
#ifndef LOCKSTEP_COMMON_LIFE_H_
#define LOCKSTEP_COMMON_LIFE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"

namespace lockstep {

class LifePage {
 public:
  static constexpr int kSlots = 4096;

  enum class State {
    kEmpty,  // not taken yet
    kAlive,
    kDead,
  };

  // A new page. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<LifePage>> Create();
  // Maps a page that was inherited or received; takes the descriptor over.
  static absl::StatusOr<std::unique_ptr<LifePage>> Open(UniqueFd fd);
  ~LifePage();

  // Inherited by workers (the descriptor itself is close-on-exec).
  int fd() const;

  // Takes `slot` for the calling thread, until that thread ends. One slot a thread.
  absl::Status Take(int slot);

  State Get(int slot) const;
  // Blocks until the word of `slot` says that its owner died, or until `timeout`. Returns whether it did.
  bool WaitForDeath(int slot, absl::Duration timeout) const;

 private:
  LifePage() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LIFE_H_
