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
#include <deque>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {
namespace {

using Word = std::atomic<uint32_t>;
using Turn = std::atomic<uint64_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);
static_assert(sizeof(Turn) == 8 && Turn::is_always_lock_free);

constexpr int kPlaceBits = 32;
constexpr size_t kBytesPerWord = sizeof(Turn) + sizeof(Word);

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
  // A page holds this head, a turn for each word, then the words. A turn is how often its word was
  // given away before, above the place of the present owner's death (0: not seen yet).
  struct Head {
    std::atomic<uint64_t> deaths;  // places given so far
  };
  static size_t BytesOf(int words) {
    return sizeof(Head) + static_cast<size_t>(words) * kBytesPerWord;
  }

  UniqueFd fd;
  Head* head = nullptr;
  Turn* turns = nullptr;
  Word* words = nullptr;
  int count = 0;
  std::atomic<bool> taken{false};
  // The creator's: words that were never given away begin at `fresh`.
  int fresh = 0;
  std::deque<int> released;  // slots

  int IndexOf(int slot) const {
    LS_CHECK_GE(slot, 0);
    return slot % count;
  }
  Word& WordOf(int slot) const { return words[IndexOf(slot)]; }
  Turn& TurnOf(int slot) const { return turns[IndexOf(slot)]; }
  // The word belongs to `slot` and to no newer one.
  bool Owns(int slot) const {
    return TurnOf(slot).load(std::memory_order_acquire) >> kPlaceBits ==
           static_cast<uint64_t>(slot / count);
  }

  // Returns what the word says about `slot`: that it is dead when another has the word.
  uint32_t Read(int slot) const {
    if (!Owns(slot)) return FUTEX_OWNER_DIED;
    const uint32_t word = WordOf(slot).load(std::memory_order_acquire);
    return Owns(slot) ? word : FUTEX_OWNER_DIED;  // it may have been given away meanwhile
  }

  // Gives the death of `slot` its place, if it has none. Returns it; 0 when another has the word.
  int64_t Enter(int slot) const {
    Turn& turn = TurnOf(slot);
    const uint64_t mine = static_cast<uint64_t>(slot / count) << kPlaceBits;
    uint64_t value = turn.load(std::memory_order_acquire);
    if (value == mine) {
      const uint64_t place = head->deaths.fetch_add(1, std::memory_order_acq_rel) + 1;
      if (turn.compare_exchange_strong(value, mine | place)) return static_cast<int64_t>(place);
    }
    return (value ^ mine) >> kPlaceBits != 0 ? 0 : static_cast<int64_t>(value - mine);
  }
};

LifePage::~LifePage() {
  if (impl_ != nullptr && impl_->head != nullptr && !impl_->taken) {
    ::munmap(impl_->head, Impl::BytesOf(impl_->count));
  }
}

absl::StatusOr<std::unique_ptr<LifePage>> LifePage::Create(int words) {
  LS_CHECK_GT(words, 0);
  const off_t bytes = static_cast<off_t>(Impl::BytesOf(words));
  UniqueFd fd(::memfd_create("lockstep-life", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create of the life page");
  // Reserved now, so that a lack of memory is an error here and not a SIGBUS later.
  if (::ftruncate(fd.get(), bytes) != 0 || ::fallocate(fd.get(), 0, 0, bytes) != 0) {
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
  const int count =
      static_cast<int>((status.st_size - static_cast<off_t>(sizeof(Impl::Head))) / kBytesPerWord);
  if (count < 1 || status.st_size != static_cast<off_t>(Impl::BytesOf(count)) || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd.get(), " is not a life page: ", status.st_size, " bytes"));
  }
  ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  void* base =
      ::mmap(nullptr, Impl::BytesOf(count), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "mapping the life page");
  auto page = std::unique_ptr<LifePage>(new LifePage());
  page->impl_ = std::make_unique<Impl>();
  page->impl_->fd = std::move(fd);
  page->impl_->count = count;
  page->impl_->head = static_cast<Impl::Head*>(base);
  page->impl_->turns = reinterpret_cast<Turn*>(page->impl_->head + 1);
  page->impl_->words = reinterpret_cast<Word*>(page->impl_->turns + count);
  return page;
}

int LifePage::fd() const { return impl_->fd.get(); }
int LifePage::words() const { return impl_->count; }

absl::StatusOr<int> LifePage::Issue() {
  if (impl_->fresh < impl_->count) return impl_->fresh++;
  if (impl_->released.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(impl_->count, " workers of the job live here, all that one agent can hold"));
  }
  const int old = impl_->released.front();
  impl_->released.pop_front();
  const int slot = old + impl_->count;
  // The turn first: from here on the old slot is dead whatever the word says, and nobody knows the
  // new one yet.
  impl_->TurnOf(slot).store(static_cast<uint64_t>(slot / impl_->count) << kPlaceBits);
  impl_->WordOf(slot).store(0);
  FutexWakeAll(&impl_->WordOf(slot));
  return slot;
}

void LifePage::TakeOver(absl::Span<const int> live) {
  std::vector<bool> in_use(static_cast<size_t>(impl_->count));
  for (const int slot : live) {
    if (impl_->Owns(slot)) in_use[static_cast<size_t>(impl_->IndexOf(slot))] = true;
  }
  // Words were given away in their order at first, and those of lives that were over say so.
  impl_->fresh = 0;
  impl_->released.clear();
  for (int index = 0; index < impl_->count; ++index) {
    const bool used = in_use[static_cast<size_t>(index)] || impl_->words[index].load() != 0 ||
                      impl_->turns[index].load() != 0;
    if (used) impl_->fresh = index + 1;
  }
  for (int index = 0; index < impl_->fresh; ++index) {
    if (in_use[static_cast<size_t>(index)]) continue;
    // Any process of the job can write there: what no slot can be is left alone.
    const uint64_t turn = impl_->turns[index].load() >> kPlaceBits;
    if (turn >= static_cast<uint64_t>(std::numeric_limits<int>::max() / impl_->count)) continue;
    const int slot = static_cast<int>(turn) * impl_->count + index;
    End(slot);
    Release(slot);
  }
}

void LifePage::End(int slot) const {
  uint32_t empty = 0;
  if (!impl_->Owns(slot)) return;
  impl_->WordOf(slot).compare_exchange_strong(empty, FUTEX_OWNER_DIED);
  WakeWaiters(slot);
}

void LifePage::Release(int slot) {
  if (!impl_->Owns(slot)) return;  // released by who had the page before
  if (!IsDead(impl_->Read(slot))) return;
  if (slot <= std::numeric_limits<int>::max() - impl_->count) impl_->released.push_back(slot);
}

absl::Status LifePage::Take(int slot) {
  if (slot < 0) return absl::InvalidArgumentError(absl::StrCat("there is no life slot ", slot));
  if (robust.used) return absl::FailedPreconditionError("this thread has a life slot already");
  if (!impl_->Owns(slot)) {
    return absl::FailedPreconditionError(absl::StrCat("life slot ", slot, " is not in use"));
  }
  Word& word = impl_->WordOf(slot);
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
  const uint32_t word = impl_->Read(slot);
  if (word == 0) return State::kEmpty;
  if (!IsDead(word)) return State::kAlive;
  impl_->Enter(slot);
  return State::kDead;
}

int64_t LifePage::DeathOrder(int slot) const {
  return IsDead(impl_->Read(slot)) ? impl_->Enter(slot) : 0;
}

FutexWord LifePage::Watch(int slot) const {
  Word& word = impl_->WordOf(slot);
  uint32_t value = impl_->Read(slot);
  // The kernel wakes at death only when FUTEX_WAITERS is set. An empty word stays as it is: Take
  // wakes.
  while (value != 0 && !IsDead(value) && (value & FUTEX_WAITERS) == 0) {
    if (word.compare_exchange_weak(value, value | FUTEX_WAITERS)) value |= FUTEX_WAITERS;
  }
  if (IsDead(value)) impl_->Enter(slot);
  return {&word, value};
}

void LifePage::WakeWaiters(int slot) const { FutexWakeAll(&impl_->WordOf(slot)); }

std::vector<size_t> LifePage::WaitForAnyDeath(absl::Span<const Ref> slots, absl::Duration timeout,
                                              const std::atomic<uint32_t>* interrupt,
                                              uint32_t seen) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  std::vector<size_t> dead;
  std::vector<FutexWord> words;
  while (true) {
    words.clear();
    if (interrupt != nullptr) words.push_back({interrupt, seen});
    for (size_t i = 0; i < slots.size(); ++i) {
      words.push_back(slots[i].page->Watch(slots[i].slot));
      if (!IsDead(words.back().expected)) continue;
      dead.push_back(i);
      slots[i].page->WakeWaiters(slots[i].slot);
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
