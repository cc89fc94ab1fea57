// SPDX-License-Identifier: Apache-2.0
// Which sample is at which place of the endless stream: a keyed permutation of [0, n) for each epoch
// (a Feistel network with cycle walking), so that any position is computed in O(1) time and memory
// and nothing has to be saved.
// Thread-safety: immutable.
#ifndef LOCKSTEP_DATA_SAMPLER_H_
#define LOCKSTEP_DATA_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace lockstep::data {

// A bijection of [0, n) chosen by `key`.
class Permutation {
 public:
  // REQUIRES: n >= 1.
  Permutation(uint64_t n, uint64_t key);
  uint64_t operator()(uint64_t i) const;  // REQUIRES: i < n

 private:
  uint64_t n_;
  int half_bits_;
  uint64_t keys_[8];
};

enum class Tail {
  kCarry,  // step s takes positions [sB, (s+1)B) of the endless stream; no batch is short
  kDrop,   // each epoch has floor(n / B) steps
};

class DistributedSampler {
 public:
  struct Options {
    int64_t dataset_size = 0;
    int64_t global_batch = 0;
    int shards = 1;
    uint64_t seed = 0;
    Tail tail = Tail::kCarry;
    bool shuffle = true;
  };
  explicit DistributedSampler(const Options& options);

  // Steps of a run of `epochs` passes: ceil(epochs x n / B), or epochs x floor(n / B) with kDrop.
  int64_t StepsFor(int64_t epochs) const;
  // The samples of `shard` at `step` (0-based), in order: global_batch / shards indices into `indices`.
  void Indices(int64_t step, int shard, absl::Span<int64_t> indices) const;
  // Passes that are complete after `steps` steps.
  int64_t EpochsCompletedAfter(int64_t steps) const;
  // The same as a fraction.
  double EpochsAfter(int64_t steps) const;
  int64_t samples_per_shard() const;

 private:
  Options options_;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_SAMPLER_H_
