// SPDX-License-Identifier: Apache-2.0
// Which sample is at which place of the endless stream: a keyed permutation of [0, n) for each
// epoch (a Feistel network with cycle walking), so that any position is computed in O(1) time and
// memory and nothing has to be saved. Thread-safety: immutable.
#ifndef LOCKSTEP_DATA_SAMPLER_H_
#define LOCKSTEP_DATA_SAMPLER_H_

#include <cstdint>

#include "absl/types/span.h"

namespace lockstep::data {

// A bijection of [0, n) chosen by `key`: an alternating Feistel network on the smallest power of
// two that holds n (at least 256, so that small sets mix too), walked until the value is below n
// (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", 2002, method 2).
class Permutation {
 public:
  // REQUIRES: 1 <= n <= 2^62.
  Permutation(uint64_t n, uint64_t key);
  uint64_t operator()(uint64_t i) const;  // REQUIRES: i < n

 private:
  static constexpr int kRounds = 8;
  uint64_t Encrypt(uint64_t x) const;

  uint64_t n_;
  int high_bits_;  // the halves may differ by one bit
  int low_bits_;
  uint64_t keys_[kRounds];
};

enum class Tail {
  kCarry,  // step s takes positions [sB, (s+1)B) of the endless stream; no batch is short
  kDrop,   // each epoch has floor(n / B) steps
};

// Deals the samples of each step to the job's shards; it never hears of workers.
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
  // REQUIRES: dataset_size >= 1, shards >= 1 divides global_batch >= 1; with kDrop
  // global_batch <= dataset_size (there would be no step).
  explicit DistributedSampler(const Options& options);

  // Steps of a run of `epochs` passes: ceil(epochs x n / B), or epochs x floor(n / B) with kDrop.
  // REQUIRES: they fit into an int64_t.
  int64_t StepsFor(int64_t epochs) const;
  // The samples of `shard` at `step` (0-based), in order: global_batch / shards indices into
  // `indices`. REQUIRES: step >= 0, 0 <= shard < shards, indices.size() == samples_per_shard().
  void Indices(int64_t step, int shard, absl::Span<int64_t> indices) const;
  // Passes that are complete after `steps` steps.
  int64_t EpochsCompletedAfter(int64_t steps) const;
  // The same as a fraction.
  double EpochsAfter(int64_t steps) const;
  int64_t samples_per_shard() const { return options_.global_batch / options_.shards; }

 private:
  // Fills `indices` with the samples at `offset` and after it of one epoch.
  void FillFromEpoch(int64_t epoch, int64_t offset, absl::Span<int64_t> indices) const;

  Options options_;
  int64_t steps_per_epoch_;  // with kDrop
  uint64_t stream_key_;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_SAMPLER_H_
