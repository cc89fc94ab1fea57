// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/thread_pool.h"

#include <string>

#include "common/relax.h"
#include "engine/cpu/numerics.h"

namespace lockstep::engine {
namespace {

// Kernels are microseconds apart: a short spin saves the futex most of the time.
constexpr int kSpins = 2000;

void WaitForChange(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    Relax();
  }
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(static_cast<size_t>(threads > 1 ? threads - 1 : 0));
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back("compute-" + std::to_string(i), [this, i] { Serve(i); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  workers_.clear();  // joins them while the words that they read are there
}

void ThreadPool::Serve(int index) {
  FlushDenormals();
  uint32_t seen = 0;
  while (true) {
    WaitForChange(round_, seen);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    (*part_)(index);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
  }
}

void ThreadPool::Run(absl::FunctionRef<void(int)> part) {
  FlushDenormals();
  Moved();
  if (workers_.empty()) {
    part(0);
    return;
  }
  part_ = &part;
  left_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  part(0);
  uint32_t left = left_.load(std::memory_order_acquire);
  while (left != 0) {
    WaitForChange(left_, left);
    left = left_.load(std::memory_order_acquire);
  }
}

}  // namespace lockstep::engine
