// SPDX-License-Identifier: Apache-2.0
// Integer counts that are summed as floats with the gradients, exactly: count = high * 4096 + low.
// Sums of up to 4,096 splits stay below 2^24 in `low`, and `high` is exact up to counts of 2^36.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_OPS_COUNTS_H_
#define LOCKSTEP_ENGINE_OPS_COUNTS_H_

#include <cstdint>

namespace lockstep::engine {

inline constexpr int64_t kCountRadix = 4096;
// Most splits (shards x micro-batches) whose sum is exact.
inline constexpr int64_t kMaxCountSplits = 4096;

struct SplitCount {
  float high = 0;
  float low = 0;
};
// Takes `count` apart. REQUIRES: 0 <= count < 2^36.
inline SplitCount Split(int64_t count) {
  const int64_t high = count / kCountRadix, low = count % kCountRadix;
  return {static_cast<float>(high), static_cast<float>(low)};
}
// Puts a count, or a sum of at most kMaxCountSplits split ones, together.
inline int64_t Join(const SplitCount& split) {
  return static_cast<int64_t>(split.high) * kCountRadix + static_cast<int64_t>(split.low);
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_COUNTS_H_
