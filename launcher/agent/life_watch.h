// SPDX-License-Identifier: Apache-2.0
// Tells the agent of deaths by the life words, in their order: one thread for all workers of a
// node. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_LIFE_WATCH_H_
#define LOCKSTEP_LAUNCHER_AGENT_LIFE_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/life.h"
#include "common/thread.h"

namespace lockstep::launcher {

class LifeWatch {
 public:
  // `on_death` is called once for each watched slot, on the watch's thread; it must not block.
  // `page` outlives the watch.
  LifeWatch(LifePage* page, std::function<void(int slot)> on_death);
  ~LifeWatch();

  // Watches `slot` until it dies or End. REQUIRES: not watched.
  void Add(int slot);
  // Marks `slot` dead if its process ended without having taken it, so that whoever waits for that
  // process is told; then the watch forgets it. Only for slots whose process has ended.
  void End(int slot);

 private:
  void Run();
  void Wake();

  LifePage* const page_;
  const std::function<void(int)> on_death_;
  std::atomic<uint32_t> changes_{0};
  absl::Mutex mu_;
  std::set<int> slots_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_LIFE_WATCH_H_
