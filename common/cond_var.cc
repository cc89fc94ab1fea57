// SPDX-License-Identifier: Apache-2.0
#include "common/cond_var.h"

#include "common/futex.h"

namespace lockstep {

void CondVar::NotifyAll() {
  sequence_.fetch_add(1, std::memory_order_seq_cst);
  // A waiter counts itself before it reads the sequence, so one that is missed here has seen the
  // new value, and does not sleep.
  if (waiters_.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&sequence_);
}

void CondVar::WaitFor(absl::Mutex* mu, absl::Duration timeout) {
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  const FutexWord word = {&sequence_, sequence_.load(std::memory_order_seq_cst)};
  mu->Unlock();
  FutexWaitAny(absl::MakeConstSpan(&word, 1), timeout);
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  mu->Lock();
}

}  // namespace lockstep
