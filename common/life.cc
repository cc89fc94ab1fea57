// SPDX-License-Identifier: Apache-2.0
#include "common/life.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {
namespace {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

// The words, then the list of the deaths: slots plus 1, 0 where it goes on.
constexpr size_t kBytes = 2 * LifePage::kSlots * sizeof(Word);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The thread's robust list: a head and one entry, both private. The kernel finds the word at
// entry + head.futex_offset, so the word itself may lie anywhere. Trivially destructible, so that
// it is whole when the kernel walks it.
struct RobustList {
  robust_list_head head;
  robust_list entry;
  bool used;
};
thread_local RobustList robust;

bool IsDead(uint32_t word) { return (word & FUTEX_OWNER_DIED) != 0; }

}  // namespace

struct LifePage::Impl {
  UniqueFd fd;
  Word* words = nullptr;
  std::atomic<bool> taken{false};

  Word& At(int slot) const {
    LS_CHECK(slot >= 0 && slot < kSlots) << slot;
    return words[slot];
  }

  // Enters the death of `slot` in the list, if it is not there. Returns its place, from 1.
  int64_t Enter(int slot) const {
    const uint32_t entry = static_cast<uint32_t>(slot) + 1;
    for (int place = 0; place < kSlots; ++place) {
      uint32_t there = words[kSlots + place].load(std::memory_order_acquire);
      if (there == 0 && words[kSlots + place].compare_exchange_strong(there, entry)) there = entry;
      if (there == entry) return place + 1;
    }
    return kSlots;  // somebody has written over the list
  }
};

LifePage::~LifePage() {
  if (impl_ != nullptr && impl_->words != nullptr && !impl_->taken) {
    ::munmap(impl_->words, kBytes);
  }
}

absl::StatusOr<std::unique_ptr<LifePage>> LifePage::Create() {
  UniqueFd fd(::memfd_create("lockstep-life", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create of the life page");
  // Reserved now, so that a lack of memory is an error here and not a SIGBUS later.
  if (::ftruncate(fd.get(), kBytes) != 0 || ::fallocate(fd.get(), 0, 0, kBytes) != 0) {
    return ErrnoStatus(errno, "reserving the life page");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "sealing the life page");
  }
  return Open(std::move(fd));
}

absl::StatusOr<std::unique_ptr<LifePage>> LifePage::Open(UniqueFd fd) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, "fstat of the life page");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (status.st_size != static_cast<off_t>(kBytes) || seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd.get(), " is not a life page: ", status.st_size, " bytes"));
  }
  ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  void* base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "mapping the life page");
  auto page = std::unique_ptr<LifePage>(new LifePage());
  page->impl_ = std::make_unique<Impl>();
  page->impl_->fd = std::move(fd);
  page->impl_->words = static_cast<Word*>(base);
  return page;
}

int LifePage::fd() const { return impl_->fd.get(); }

absl::Status LifePage::Take(int slot) {
  if (slot < 0 || slot >= kSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("life slot ", slot, " is outside [0, ", kSlots, ")"));
  }
  if (robust.used) return absl::FailedPreconditionError("this thread has a life slot already");
  Word& word = impl_->At(slot);
  robust.entry.next = &robust.head.list;
  robust.head.list.next = &robust.entry;
  robust.head.futex_offset =
      reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&robust.entry);
  robust.head.list_op_pending = nullptr;
  // The list first, the word after: a death between the two leaves the word empty, and an exit code
  // tells.
  if (::syscall(SYS_set_robust_list, &robust.head, sizeof(robust.head)) != 0) {
    return ErrnoStatus(errno, "set_robust_list");
  }
  robust.used = true;
  impl_->taken = true;
  uint32_t expected = 0;
  const uint32_t tid = static_cast<uint32_t>(::syscall(SYS_gettid));
  if (!word.compare_exchange_strong(expected, tid)) {
    robust.head.list.next = &robust.head.list;
    robust.used = false;
    return absl::FailedPreconditionError(absl::StrCat("life slot ", slot, " was taken before"));
  }
  FutexWakeAll(&word);
  return absl::OkStatus();
}

LifePage::State LifePage::Get(int slot) const {
  const uint32_t word = impl_->At(slot).load(std::memory_order_acquire);
  if (word == 0) return State::kEmpty;
  if (!IsDead(word)) return State::kAlive;
  impl_->Enter(slot);
  return State::kDead;
}

int64_t LifePage::DeathOrder(int slot) const {
  return IsDead(impl_->At(slot).load(std::memory_order_acquire)) ? impl_->Enter(slot) : 0;
}

FutexWord LifePage::Watch(int slot) const {
  Word& word = impl_->At(slot);
  uint32_t value = word.load(std::memory_order_acquire);
  // The kernel wakes at death only when FUTEX_WAITERS is set. An empty word stays as it is: Take
  // wakes.
  while (value != 0 && !IsDead(value) && (value & FUTEX_WAITERS) == 0) {
    if (word.compare_exchange_weak(value, value | FUTEX_WAITERS)) value |= FUTEX_WAITERS;
  }
  if (IsDead(value)) impl_->Enter(slot);
  return {&word, value};
}

void LifePage::WakeWaiters(int slot) const { FutexWakeAll(&impl_->At(slot)); }

bool LifePage::WaitForDeath(int slot, absl::Duration timeout) const {
  return !WaitForAnyDeath(absl::MakeConstSpan(&slot, 1), timeout).empty();
}

std::vector<int> LifePage::WaitForAnyDeath(absl::Span<const int> slots, absl::Duration timeout,
                                           const std::atomic<uint32_t>* interrupt,
                                           uint32_t seen) const {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  std::vector<int> dead;
  std::vector<FutexWord> words;
  while (true) {
    words.clear();
    if (interrupt != nullptr) words.push_back({interrupt, seen});
    for (const int slot : slots) {
      words.push_back(Watch(slot));
      if (!IsDead(words.back().expected)) continue;
      dead.push_back(slot);
      WakeWaiters(slot);
    }
    if (!dead.empty()) return dead;
    if (interrupt != nullptr && interrupt->load(std::memory_order_acquire) != seen) return dead;
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return dead;
    if (words.empty()) return dead;
    const bool all = words.size() <= kMaxFutexWords;
    FutexWaitAny(absl::MakeConstSpan(words).subspan(0, all ? words.size() : kMaxFutexWords),
                 all ? left : std::min(left, absl::Milliseconds(1)));
  }
}

}  // namespace lockstep
