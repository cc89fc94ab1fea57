// SPDX-License-Identifier: Apache-2.0
#include "common/bus_guard.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "absl/synchronization/mutex.h"
#include "common/check.h"

namespace lockstep {
namespace {

absl::Mutex mu(absl::kConstInit);             // over changes of the list; the handler only reads
std::atomic<BusGuard*> guards{nullptr};       // all that ever were
struct sigaction before ABSL_GUARDED_BY(mu);  // written once, before the handler can run
uintptr_t page_size = 0;                      // likewise

}  // namespace

// All that it does is allowed in a handler: atomics without locks, and plain system calls.
void OnBusError(int, void* information) {
  const int saved = errno;
  const auto address =
      reinterpret_cast<uintptr_t>(static_cast<const siginfo_t*>(information)->si_addr);
  for (BusGuard* guard = guards.load(std::memory_order_acquire); guard != nullptr;
       guard = guard->next_) {
    if (!guard->Take(address)) continue;
    errno = saved;
    return;
  }
  errno = saved;
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
  BusGuard* guard = guards.load(std::memory_order_relaxed);
  while (guard != nullptr && guard->begin_.load(std::memory_order_relaxed) != 0) {
    guard = guard->next_;
  }
  const bool fresh = guard == nullptr;
  if (fresh) {
    guard = new BusGuard;  // lives for the whole program
    guard->next_ = guards.load(std::memory_order_relaxed);
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  guard->hit_.store(false, std::memory_order_relaxed);
  guard->writable_.store(writable, std::memory_order_relaxed);
  guard->end_.store(begin + (bytes + page_size - 1) / page_size * page_size,
                    std::memory_order_release);
  guard->begin_.store(begin, std::memory_order_release);
  if (fresh) guards.store(guard, std::memory_order_release);
  return guard;
}

void BusGuard::Release() {
  absl::MutexLock lock(&mu);
  begin_.store(0, std::memory_order_release);
}

}  // namespace lockstep
