// SPDX-License-Identifier: Apache-2.0
// Life words: how the death of a process on this host is seen within 0.1 ms.
//
// An agent owns one page (a memfd) for each job that has workers here, with a word for each of
// them. A worker's main thread takes its word as a robust futex; when the thread dies, however that
// happens, the kernel sets FUTEX_OWNER_DIED in the word before it tears the address space down, and
// wakes a waiter (who wakes the others). Peers look at the words in their wait loops, the agent
// waits on them. See set_robust_list(2) and the kernel's Documentation/locking/robust-futexes.rst.
//
// What a worker is given is a slot, a number that no other worker of the page ever gets. Words are
// fewer: slot n has word n mod words(), which says how often it was given away, and the agent gives
// it to a new slot only when the process of the old one has ended and was released. Who still
// watches the old slot goes on to see it dead.
//
// The kernel does not say which of two deaths was the first, and the agent may look when both have
// happened. So whoever sees a death first, mostly a peer that waits for the dead one, gives it the
// next number of the page: who fails because of a death has seen it, and gets a later one.
//
// Thread-safety: Take is called once, by the main thread of a worker; Issue, TakeOver and Release
// belong to one thread of the page's creator, or of who took it over; the rest is thread-safe.
#ifndef LOCKSTEP_COMMON_LIFE_H_
#define LOCKSTEP_COMMON_LIFE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/fd.h"
#include "common/futex.h"

namespace lockstep {

class LifePage {
 public:
  static constexpr int kWords = 4096;

  enum class State {
    kEmpty,  // not taken yet
    kAlive,
    kDead,
  };

  // A new page of `words` words, sealed against changes of its size. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<LifePage>> Create(int words = kWords);
  // Maps a page that was inherited or received; takes the descriptor over.
  // Errors: InvalidArgument when the descriptor is not a life page.
  static absl::StatusOr<std::unique_ptr<LifePage>> Open(UniqueFd fd);
  // Unmaps the page, unless a slot was taken through it: the kernel needs the mapping at the
  // thread's death, so it then stays until the process ends.
  ~LifePage();

  // Inherited by workers (the descriptor itself is close-on-exec).
  int fd() const;
  int words() const;

  // A slot for a worker that is about to be started. Words that were released longest ago come
  // first. Errors: ResourceExhausted while every word belongs to a slot that was not released.
  absl::StatusOr<int> Issue();
  // For who has opened a page whose creator is gone, before it issues slots itself: `live` are
  // those whose processes may still run, and will be released.
  void TakeOver(absl::Span<const int> live);
  // The process that was given `slot` has ended, or was never started: marks the slot dead if
  // nobody had taken it, so that whoever waits for that process is told.
  void End(int slot) const;
  // Lets the word of an issued slot be used again, unless somebody lives in it, whom nothing could
  // end. REQUIRES: End(slot) was called.
  void Release(int slot);

  // Takes `slot` for the calling thread, until that thread ends or calls execve. One slot a thread.
  // The thread's robust list becomes ours, so it must hold no robust pthread mutexes.
  // Errors: FailedPrecondition when the slot was taken before or the thread has one already;
  // InvalidArgument when there is no such slot.
  absl::Status Take(int slot);

  // Returns what the word of `slot` says now. Does not block.
  State Get(int slot) const;

  // The place of `slot` among the deaths of the page, from 1, in the order in which they were first
  // seen through any mapping of the page, by any function of this class; places may be left out. 0:
  // it is not dead, or its word belongs to a newer slot.
  int64_t DeathOrder(int slot) const;

  // One slot of one page.
  struct Ref {
    const LifePage* page = nullptr;
    int slot = 0;
  };
  // Blocks until at least one of `slots` is dead, or until `timeout`, or until `*interrupt` differs
  // from `seen` (the interrupter changes it and calls FutexWakeAll; null: none). Returns which are
  // dead: indices into `slots`, ascending. A slot that is empty is waited for too. Up to 127 slots
  // sleep in one system call; beyond that, and on kernels without futex_waitv, the words are looked
  // at each millisecond.
  static std::vector<size_t> WaitForAnyDeath(absl::Span<const Ref> slots, absl::Duration timeout,
                                             const std::atomic<uint32_t>* interrupt = nullptr,
                                             uint32_t seen = 0);

  // For wait loops of their own: asks the kernel to wake waiters of `slot` when its owner dies and
  // returns the word with the value that it has while nothing has happened. A waiter that finds the
  // slot dead calls WakeWaiters, since the kernel wakes only one.
  FutexWord Watch(int slot) const;
  void WakeWaiters(int slot) const;

 private:
  LifePage() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LIFE_H_
