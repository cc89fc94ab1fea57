// SPDX-License-Identifier: Apache-2.0
// Threads that run the parts of one kernel. Which part a thread gets is fixed by its index, and
// parts cut outputs, never sums, so results do not depend on the number of threads. Thread-safety:
// Run is called by one thread at a time.
#ifndef LOCKSTEP_ENGINE_CPU_THREAD_POOL_H_
#define LOCKSTEP_ENGINE_CPU_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/thread.h"

namespace lockstep::engine {

class ThreadPool {
 public:
  // `threads` counts the caller too: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Calls `part(i)` for i in [0, threads()), part 0 on the caller's thread, and waits for all; each
  // of these threads flushes denormals (device/numerics.h) from then on. Allocates nothing.
  void Run(absl::FunctionRef<void(int)> part);

  // Has Run and Moved count in `moves` from now on, which outlives this; null: nobody counts.
  void CountIn(std::atomic<int64_t>* moves) { moves_ = moves; }
  // Some of what a part does is done: one that takes seconds is seen to get on. On any of the
  // threads within Run.
  void Moved() const {
    if (moves_ != nullptr) moves_->fetch_add(1, std::memory_order_relaxed);
  }

 private:
  void Serve(int index);

  std::vector<Thread> workers_;
  std::atomic<uint32_t> round_{0};  // a change starts the workers
  std::atomic<uint32_t> left_{0};
  std::atomic<bool> stop_{false};
  const absl::FunctionRef<void(int)>* part_ = nullptr;  // written before round_ changes
  std::atomic<int64_t>* moves_ = nullptr;               // likewise
};

// The slice [first, second) of `count` units of part `index` of `parts`.
inline std::pair<int64_t, int64_t> PartOf(int64_t count, int index, int parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

// Calls run(at, count) for the parts of `elements` that the threads of `pool` share.
template <typename Body>
void ForParts(int64_t elements, ThreadPool* pool, const Body& run) {
  constexpr int64_t kUnit = 1024;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf((elements + kUnit - 1) / kUnit, index, pool->threads());
    const int64_t at = begin * kUnit;
    const int64_t count = std::min(end * kUnit, elements) - at;
    if (count > 0) run(at, count);
  });
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_THREAD_POOL_H_
