// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/life_watch.h"

#include <pthread.h>
#include <sched.h>

#include <utility>
#include <vector>

#include "common/futex.h"

namespace lockstep::launcher {

LifeWatch::LifeWatch(std::function<void(uint64_t id)> on_death)
    : on_death_(std::move(on_death)), thread_("life-watch", [this] { Run(); }) {}

LifeWatch::~LifeWatch() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  Wake();
  thread_.Join();
}

void LifeWatch::Add(uint64_t id, std::shared_ptr<const LifePage> page, int slot) {
  {
    absl::MutexLock lock(&mu_);
    lives_[id] = {std::move(page), slot};
  }
  Wake();
}

void LifeWatch::Remove(uint64_t id) {
  {
    absl::MutexLock lock(&mu_);
    if (lives_.erase(id) == 0) return;
  }
  Wake();
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
    std::map<uint64_t, Life> lives;  // keeps the pages mapped meanwhile
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
      lives = lives_;
    }
    std::vector<uint64_t> ids;
    std::vector<LifePage::Ref> slots;
    for (const auto& [id, life] : lives) {
      ids.push_back(id);
      slots.push_back({life.page.get(), life.slot});
    }
    for (const size_t i : LifePage::WaitForAnyDeath(slots, absl::Hours(1), &changes_, seen)) {
      bool first;
      {
        absl::MutexLock lock(&mu_);
        first = lives_.erase(ids[i]) > 0;
      }
      if (first) on_death_(ids[i]);
    }
  }
}

}  // namespace lockstep::launcher
