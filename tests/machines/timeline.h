// SPDX-License-Identifier: Apache-2.0
// Virtual time: what is to happen, in the order of its time and then of its making. The only source
// of chance is the seed's generator, so a seed is a history; or there is no chance, for scripts.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_TIMELINE_H_
#define LOCKSTEP_TESTS_MACHINES_TIMELINE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace lockstep::simulation {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Leaves nothing to chance: the least of all that may be, and nothing that may not happen.
  static Random None() {
    Random none(0);
    none.none_ = true;
    return none;
  }
  bool is_none() const { return none_; }
  uint64_t Next() {
    if (none_) return 0;
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // [0, n); n > 0.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool Chance(double p) { return !none_ && static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return absl::Nanoseconds(
        Between(absl::ToInt64Nanoseconds(low), absl::ToInt64Nanoseconds(high)));
  }

 private:
  uint64_t state_;
  bool none_ = false;
};

class Timeline {
 public:
  explicit Timeline(Random chance) : random(chance) {}

  Random random;

  absl::Time now() const { return now_; }
  void At(absl::Time time, std::function<void()> what) {
    heap_.push_back({std::max(time, now_), ++made_, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }
  void In(absl::Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // Lets the next thing happen. False: nothing is to happen until `end`.
  bool RunNext(absl::Time end) {
    if (heap_.empty() || heap_.front().time > end) {
      now_ = end;
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.time;
    entry.what();
    return true;
  }
  // One of two cases, without a draw.
  bool Even() const { return !random.is_none() && made_ % 2 == 0; }

 private:
  struct Entry {
    absl::Time time;
    uint64_t number = 0;
    std::function<void()> what;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1000);
  uint64_t made_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_TIMELINE_H_
