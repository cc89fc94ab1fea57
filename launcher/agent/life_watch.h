// SPDX-License-Identifier: Apache-2.0
// Tells the agent of deaths by the life words, in their order: one thread for all workers of a
// node. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_LIFE_WATCH_H_
#define LOCKSTEP_LAUNCHER_AGENT_LIFE_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/life.h"
#include "common/thread.h"

namespace lockstep::launcher {

class LifeWatch {
 public:
  // `on_death` is called once for each watched life, on the watch's thread; it must not block.
  explicit LifeWatch(std::function<void(uint64_t id)> on_death);
  ~LifeWatch();

  // Watches `slot` of `page` until it dies or Remove; `id` is the caller's name for it.
  void Add(uint64_t id, std::shared_ptr<const LifePage> page, int slot);
  // Forgets it, if it is watched.
  void Remove(uint64_t id);

 private:
  struct Life {
    std::shared_ptr<const LifePage> page;
    int slot = 0;
  };
  void Run();
  void Wake();

  const std::function<void(uint64_t)> on_death_;
  std::atomic<uint32_t> changes_{0};
  absl::Mutex mu_;
  std::map<uint64_t, Life> lives_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_LIFE_WATCH_H_
