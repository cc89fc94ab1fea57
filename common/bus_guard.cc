// SPDX-License-Identifier: Apache-2.0
#include "common/bus_guard.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <csignal>

#include "absl/synchronization/mutex.h"
#include "common/check.h"

namespace lockstep {
namespace {

// The guards by the pages that their mappings begin at: a tree like that of the processor's page
// tables, for addresses of 48 bits. Its nodes live for the whole program, so that the handler may
// walk it at any time.
constexpr int kPageBits = 12, kSlotBits = 9, kTopLevel = 3;
constexpr int kSlots = 1 << kSlotBits;

struct Node {
  std::atomic<uint64_t> used[kSlots / 64] = {};  // a bit for each slot below which there is a guard
  std::atomic<void*> below[kSlots] = {};         // nodes, at level 0 guards
};

absl::Mutex mu(absl::kConstInit);             // over changes of the tree; the handler only reads
constinit Node root;                          // of level kTopLevel
BusGuard* unused ABSL_GUARDED_BY(mu);         // guards that were released
struct sigaction before ABSL_GUARDED_BY(mu);  // written once, before the handler can run
uintptr_t page_size = 0;                      // likewise

int SlotOf(uintptr_t address, int level) {
  return static_cast<int>(address >> (kPageBits + level * kSlotBits) & (kSlots - 1));
}

void Put(Node* node, int level, uintptr_t begin, BusGuard* guard)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  const int slot = SlotOf(begin, level);
  if (level == 0) {
    node->below[slot].store(guard, std::memory_order_release);
  } else {
    auto* next = static_cast<Node*>(node->below[slot].load(std::memory_order_relaxed));
    if (next == nullptr) {
      next = new Node;
      node->below[slot].store(next, std::memory_order_release);
    }
    Put(next, level - 1, begin, guard);
  }
  node->used[slot / 64].fetch_or(uint64_t{1} << slot % 64, std::memory_order_release);
}

// Returns whether no guard is left below `node`.
bool Remove(Node* node, int level, uintptr_t begin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  const int slot = SlotOf(begin, level);
  void* const next = node->below[slot].load(std::memory_order_relaxed);
  if (level > 0 && !Remove(static_cast<Node*>(next), level - 1, begin)) return false;
  node->used[slot / 64].fetch_and(~(uint64_t{1} << slot % 64), std::memory_order_release);
  for (const std::atomic<uint64_t>& bits : node->used) {
    if (bits.load(std::memory_order_relaxed) != 0) return false;
  }
  return true;
}

// Returns the last used slot of `node` up to `slot`, which may be -1; -1 without one.
int LastUsed(const Node& node, int slot) {
  for (; slot >= 0; slot = slot / 64 * 64 - 1) {
    const uint64_t bits = node.used[slot / 64].load(std::memory_order_acquire) << (63 - slot % 64);
    if (bits != 0) return slot - std::countl_zero(bits);
  }
  return -1;
}

// Returns the last guard whose mapping begins at `address` or before; null without one. That of
// `address` is it where there is one, since mappings do not overlap; others may come and go.
BusGuard* LastUpTo(const Node& node, int level, uintptr_t address) {
  const int own = SlotOf(address, level);
  for (int slot = LastUsed(node, own); slot >= 0; slot = LastUsed(node, slot - 1)) {
    void* const below = node.below[slot].load(std::memory_order_acquire);
    if (level == 0) return static_cast<BusGuard*>(below);
    // What lies below an earlier slot is before the address in any case.
    BusGuard* const last = LastUpTo(*static_cast<const Node*>(below), level - 1,
                                    slot == own ? address : ~uintptr_t{0});
    if (last != nullptr) return last;
  }
  return nullptr;
}

}  // namespace

// All that it does is allowed in a handler: atomics without locks, and plain system calls.
void OnBusError(int, void* information) {
  const int saved = errno;
  const auto address =
      reinterpret_cast<uintptr_t>(static_cast<const siginfo_t*>(information)->si_addr);
  BusGuard* const guard = LastUpTo(root, kTopLevel, address);
  const bool taken = guard != nullptr && guard->Take(address);
  errno = saved;
  if (taken) return;
  // Nobody's here: the same access faults again and finds who was in charge before.
  ::sigaction(SIGBUS, &before, nullptr);
}

bool BusGuard::Take(uintptr_t address) {
  const uintptr_t begin = begin_.load(std::memory_order_acquire);
  const uintptr_t end = end_.load(std::memory_order_acquire);
  if (begin == 0 || address < begin || address >= end) return false;
  // Marked first: nobody sees zeros without the mark.
  hit_.store(true, std::memory_order_seq_cst);
  const uintptr_t page = address / page_size * page_size;
  const int protection = writable_.load() ? PROT_READ | PROT_WRITE : PROT_READ;
  // The system call itself: a sanitizer's mmap is not made for handlers.
  const long mapped = ::syscall(SYS_mmap, page, end - page, protection,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return mapped == static_cast<long>(page);
}

namespace {

void Handle(int signal, siginfo_t* information, void*) { OnBusError(signal, information); }

void Install() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  if (page_size != 0) return;
  page_size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  LS_CHECK_EQ(::sigaction(SIGBUS, nullptr, &before), 0);
  LS_CHECK_EQ(::sigaction(SIGBUS, &action, nullptr), 0);
}

}  // namespace

BusGuard* BusGuard::Guard(void* data, size_t bytes, bool writable) {
  absl::MutexLock lock(&mu);
  Install();
  BusGuard* guard = unused;
  if (guard != nullptr) {
    unused = guard->next_;
  } else {
    guard = new BusGuard;  // lives for the whole program
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  LS_CHECK_EQ(begin >> (kPageBits + (kTopLevel + 1) * kSlotBits), 0u);
  guard->hit_.store(false, std::memory_order_relaxed);
  guard->writable_.store(writable, std::memory_order_relaxed);
  guard->end_.store(begin + (bytes + page_size - 1) / page_size * page_size,
                    std::memory_order_release);
  guard->begin_.store(begin, std::memory_order_release);
  Put(&root, kTopLevel, begin, guard);
  return guard;
}

void BusGuard::Release() {
  absl::MutexLock lock(&mu);
  Remove(&root, kTopLevel, begin_.load(std::memory_order_relaxed));
  begin_.store(0, std::memory_order_release);
  next_ = unused;
  unused = this;
}

}  // namespace lockstep
