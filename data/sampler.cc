// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <algorithm>
#include <bit>

#include "absl/numeric/int128.h"
#include "common/check.h"
#include "common/philox.h"

namespace lockstep::data {
namespace {

constexpr int kMinBits = 8;

// `bits` well mixed bits of (x, key). Two multiplications: eight rounds of it pass the uniformity
// tests with room to spare.
inline uint64_t Round(uint64_t x, uint64_t key, int bits) {
  uint64_t h = (x ^ key) * 0x9E3779B97F4A7C15u;
  h ^= h >> 32;
  h *= 0xD6E8FEB86659FD93u;
  return h >> (64 - bits);
}

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t key) : n_(n) {
  LS_CHECK(n >= 1 && n <= uint64_t{1} << 62) << n;
  const int bits = std::max(kMinBits, static_cast<int>(std::bit_width(n - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  for (int r = 0; r < kRounds; ++r) keys_[r] = MixBits(key + 0x9E3779B97F4A7C15u * (r + 1));
}

uint64_t Permutation::Encrypt(uint64_t x) const {
  uint64_t high = x >> low_bits_;
  uint64_t low = x & ((uint64_t{1} << low_bits_) - 1);
  for (int r = 0; r < kRounds; r += 2) {
    high ^= Round(low, keys_[r], high_bits_);
    low ^= Round(high, keys_[r + 1], low_bits_);
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t i) const {
  LS_DCHECK(i < n_);
  do {
    i = Encrypt(i);
  } while (i >= n_);
  return i;
}

DistributedSampler::DistributedSampler(const Options& options)
    : options_(options), stream_key_(SiteKey(options.seed, "data.sampler")) {
  LS_CHECK_GE(options_.dataset_size, 1);
  LS_CHECK_GE(options_.global_batch, 1);
  LS_CHECK_GE(options_.shards, 1);
  LS_CHECK_EQ(options_.global_batch % options_.shards, 0);
  steps_per_epoch_ = options_.dataset_size / options_.global_batch;
  if (options_.tail == Tail::kDrop) LS_CHECK_GE(steps_per_epoch_, 1);
}

int64_t DistributedSampler::StepsFor(int64_t epochs) const {
  if (options_.tail == Tail::kDrop) return epochs * steps_per_epoch_;
  const absl::int128 samples = absl::int128(epochs) * options_.dataset_size;
  return static_cast<int64_t>((samples + options_.global_batch - 1) / options_.global_batch);
}

void DistributedSampler::FillFromEpoch(int64_t epoch, int64_t offset,
                                       absl::Span<int64_t> indices) const {
  if (!options_.shuffle) {
    for (int64_t& index : indices) index = offset++;
    return;
  }
  const Permutation permutation(
      static_cast<uint64_t>(options_.dataset_size),
      MixBits(stream_key_ + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(epoch)));
  for (int64_t& index : indices) {
    index = static_cast<int64_t>(permutation(static_cast<uint64_t>(offset++)));
  }
}

void DistributedSampler::Indices(int64_t step, int shard, absl::Span<int64_t> indices) const {
  const int64_t count = samples_per_shard();
  LS_CHECK(step >= 0 && shard >= 0 && shard < options_.shards) << step << " " << shard;
  LS_CHECK_EQ(static_cast<int64_t>(indices.size()), count);
  const int64_t n = options_.dataset_size;
  if (options_.tail == Tail::kDrop) {
    const int64_t in_epoch = step % steps_per_epoch_ * options_.global_batch;
    FillFromEpoch(step / steps_per_epoch_, in_epoch + shard * count, indices);
    return;
  }
  int64_t position = step * options_.global_batch + shard * count;
  while (!indices.empty()) {
    const int64_t offset = position % n;
    const size_t take =
        static_cast<size_t>(std::min<int64_t>(n - offset, static_cast<int64_t>(indices.size())));
    FillFromEpoch(position / n, offset, indices.subspan(0, take));
    indices.remove_prefix(take);
    position += static_cast<int64_t>(take);
  }
}

int64_t DistributedSampler::EpochsCompletedAfter(int64_t steps) const {
  if (options_.tail == Tail::kDrop) return steps / steps_per_epoch_;
  return steps * options_.global_batch / options_.dataset_size;
}

double DistributedSampler::EpochsAfter(int64_t steps) const {
  if (options_.tail == Tail::kDrop) {
    return static_cast<double>(steps) / static_cast<double>(steps_per_epoch_);
  }
  return static_cast<double>(steps) * static_cast<double>(options_.global_batch) /
         static_cast<double>(options_.dataset_size);
}

}  // namespace lockstep::data
