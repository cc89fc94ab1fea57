// SPDX-License-Identifier: Apache-2.0
// What the benchmark programs share: the clock, memory, medians. Thread-safety: pure functions.
#ifndef LOCKSTEP_BENCH_TIMING_H_
#define LOCKSTEP_BENCH_TIMING_H_

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace lockstep::bench {

// Seconds, from some start.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};
template <typename T>
using Memory = std::unique_ptr<T[], Free>;

// `count` elements on large pages where the system has them, as the worker's regions lie; not
// initialised.
template <typename T>
Memory<T> Allocate(size_t count) {
  constexpr size_t kPage = size_t{2} << 20;
  const size_t bytes = (count * sizeof(T) + kPage - 1) / kPage * kPage;
  void* const memory = std::aligned_alloc(kPage, bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return Memory<T>(static_cast<T*>(memory));
}

// REQUIRES: at least one value.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace lockstep::bench

#endif  // LOCKSTEP_BENCH_TIMING_H_
