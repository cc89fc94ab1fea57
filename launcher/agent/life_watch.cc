// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/life_watch.h"

#include <pthread.h>
#include <sched.h>

#include <utility>
#include <vector>

#include "common/futex.h"

namespace lockstep::launcher {

LifeWatch::LifeWatch(LifePage* page, std::function<void(int slot)> on_death)
    : page_(page), on_death_(std::move(on_death)), thread_("life-watch", [this] { Run(); }) {}

LifeWatch::~LifeWatch() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  Wake();
  thread_.Join();
}

void LifeWatch::Add(int slot) {
  {
    absl::MutexLock lock(&mu_);
    slots_.insert(slot);
  }
  Wake();
}

void LifeWatch::End(int slot) {
  {
    absl::MutexLock lock(&mu_);
    slots_.erase(slot);
  }
  Wake();
  if (page_->Get(slot) != LifePage::State::kEmpty) return;
  // The kernel marks a word when the thread that took it ends.
  Thread mark("life-mark", [this, slot] { page_->Take(slot).IgnoreError(); });
  mark.Join();
}

void LifeWatch::Wake() {
  changes_.fetch_add(1);
  FutexWakeAll(&changes_);
}

void LifeWatch::Run() {
  // Of the sleepers at a word the kernel wakes the one with the highest priority first, and the
  // sooner this one looks, the better it knows which death was the first. Who may not have it does
  // without.
  const sched_param lowest{1};
  ::pthread_setschedparam(::pthread_self(), SCHED_FIFO, &lowest);
  while (true) {
    const uint32_t seen = changes_.load();
    std::vector<int> slots;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
      slots.assign(slots_.begin(), slots_.end());
    }
    for (const int slot : page_->WaitForAnyDeath(slots, absl::Hours(1), &changes_, seen)) {
      bool first;
      {
        absl::MutexLock lock(&mu_);
        first = slots_.erase(slot) > 0;
      }
      if (first) on_death_(slot);
    }
  }
}

}  // namespace lockstep::launcher
