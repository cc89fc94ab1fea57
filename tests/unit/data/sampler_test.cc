// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace lockstep::data {
namespace {

void ExpectBijection(uint64_t n, uint64_t key) {
  const Permutation permutation(n, key);
  std::vector<bool> seen(n);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t image = permutation(i);
    ASSERT_LT(image, n);
    ASSERT_FALSE(seen[image]) << "n " << n << " twice " << image;
    seen[image] = true;
  }
}

// Around the powers of two, where the network grows; the conformance suite tries every size.
TEST(PermutationTest, IsABijectionForSmallSizes) {
  for (uint64_t n = 1; n <= 300; ++n) ASSERT_NO_FATAL_FAILURE(ExpectBijection(n, n * 31));
  for (const uint64_t power : {512, 1024, 2048, 4096}) {
    for (uint64_t n = power - 2; n <= power + 2; ++n) {
      ASSERT_NO_FATAL_FAILURE(ExpectBijection(n, n * 31));
    }
  }
}

TEST(PermutationTest, IsABijectionForLargerPrimesAndPowers) {
  for (const uint64_t n : {4999, 60000, 65521, 65537, 104729, 1 << 16}) {
    ASSERT_NO_FATAL_FAILURE(ExpectBijection(n, 7));
  }
}

TEST(PermutationTest, HugeDomainsStayInside) {
  const uint64_t n = (uint64_t{1} << 62) - 57;
  const Permutation permutation(n, 3);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permutation(n - 1 - i * 977), n);
}

TEST(PermutationTest, TwoKeysAgreeInFewPlaces) {
  for (const uint64_t n : {100, 1000, 4999, 60000}) {
    for (uint64_t key = 0; key < 5; ++key) {
      const Permutation a(n, key), b(n, key + 1);
      uint64_t same = 0;
      for (uint64_t i = 0; i < n; ++i) same += a(i) == b(i);
      EXPECT_LT(static_cast<double>(same), 3 * std::sqrt(static_cast<double>(n)));
    }
  }
}

// What comes first, over many keys: small sets must mix as well.
TEST(PermutationTest, FirstPlaceIsUniformOverKeys) {
  for (const uint64_t n : {2, 3, 10, 100}) {
    std::vector<double> count(n);
    const uint64_t keys = 200 * n;
    for (uint64_t key = 0; key < keys; ++key) count[Permutation(n, key)(0)] += 1;
    double chi_square = 0;
    for (const double c : count) chi_square += (c - 200) * (c - 200) / 200;
    const double df = static_cast<double>(n - 1);
    EXPECT_LT(chi_square, df + 5 * std::sqrt(2 * df)) << n;
  }
}

std::vector<int64_t> Take(const DistributedSampler& sampler, int64_t step, int shard) {
  std::vector<int64_t> indices(static_cast<size_t>(sampler.samples_per_shard()));
  sampler.Indices(step, shard, absl::MakeSpan(indices));
  return indices;
}

TEST(SamplerTest, KnownStreamStaysTheSame) {
  // The stream is part of the promise across versions: a change of it is a new format.
  const DistributedSampler sampler(
      {.dataset_size = 60000, .global_batch = 8, .shards = 2, .seed = 1});
  EXPECT_EQ(Take(sampler, 0, 0), (std::vector<int64_t>{40180, 40352, 31217, 8505}));
  EXPECT_EQ(Take(sampler, 7500, 1), (std::vector<int64_t>{36909, 29964, 31412, 18269}));
}

TEST(SamplerTest, EpochsDiffer) {
  const DistributedSampler sampler({.dataset_size = 60000, .global_batch = 60000, .seed = 4});
  const std::vector<int64_t> first = Take(sampler, 0, 0), second = Take(sampler, 1, 0);
  int same = 0;
  for (size_t i = 0; i < first.size(); ++i) same += first[i] == second[i];
  EXPECT_LT(same, 3 * std::sqrt(60000.0));
}

TEST(SamplerTest, AShardIsUniformOverTheData) {
  const DistributedSampler sampler(
      {.dataset_size = 60000, .global_batch = 256, .shards = 4, .seed = 9});
  constexpr int kBins = 100;
  for (int shard = 0; shard < 4; ++shard) {
    std::vector<double> count(kBins);
    double total = 0;
    for (int64_t step = 0; step < 200; ++step) {
      for (const int64_t index : Take(sampler, step, shard)) {
        count[static_cast<size_t>(index * kBins / 60000)] += 1;
        total += 1;
      }
    }
    double chi_square = 0;
    const double expected = total / kBins;
    for (const double c : count) chi_square += (c - expected) * (c - expected) / expected;
    EXPECT_LT(chi_square, 99 + 5 * std::sqrt(2 * 99.0)) << "shard " << shard;
  }
}

TEST(SamplerTest, CarryTakesEverySampleOnceAnEpoch) {
  for (const int64_t n : {1, 7, 100, 1013}) {
    // 13 and n share no factor, so the epochs end inside batches; the E-th pass of B = 13 epochs
    // ends with a full batch.
    const DistributedSampler sampler({.dataset_size = n, .global_batch = 13, .seed = 2});
    std::vector<int> taken(static_cast<size_t>(n));
    const int64_t steps = sampler.StepsFor(13);
    EXPECT_EQ(steps, n);
    int64_t position = 0;
    for (int64_t step = 0; step < steps; ++step) {
      for (const int64_t index : Take(sampler, step, 0)) {
        ++taken[static_cast<size_t>(index)];
        if (++position % n != 0) continue;
        for (const int count : taken) ASSERT_EQ(count, position / n) << "n " << n;
      }
    }
    EXPECT_EQ(position, 13 * n);
  }
}

TEST(SamplerTest, ShardsTogetherAreTheBatch) {
  for (const int shards : {1, 2, 3, 4, 6, 12}) {
    const DistributedSampler whole({.dataset_size = 101, .global_batch = 12, .seed = 3});
    const DistributedSampler parts(
        {.dataset_size = 101, .global_batch = 12, .shards = shards, .seed = 3});
    for (int64_t step = 0; step < 20; ++step) {
      std::vector<int64_t> joined;
      for (int shard = 0; shard < shards; ++shard) {
        const std::vector<int64_t> part = Take(parts, step, shard);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      ASSERT_EQ(joined, Take(whole, step, 0));
    }
  }
}

TEST(SamplerTest, CarryCounts) {
  const DistributedSampler sampler({.dataset_size = 10, .global_batch = 4});
  EXPECT_EQ(sampler.StepsFor(1), 3);
  EXPECT_EQ(sampler.StepsFor(2), 5);
  EXPECT_EQ(sampler.EpochsCompletedAfter(2), 0);
  EXPECT_EQ(sampler.EpochsCompletedAfter(3), 1);
  EXPECT_EQ(sampler.EpochsCompletedAfter(5), 2);
  EXPECT_DOUBLE_EQ(sampler.EpochsAfter(1), 0.4);
}

TEST(SamplerTest, DropLeavesTheRestOfEachEpochOut) {
  const DistributedSampler sampler(
      {.dataset_size = 10, .global_batch = 4, .seed = 5, .tail = Tail::kDrop});
  EXPECT_EQ(sampler.StepsFor(3), 6);
  EXPECT_EQ(sampler.EpochsCompletedAfter(3), 1);
  EXPECT_DOUBLE_EQ(sampler.EpochsAfter(3), 1.5);
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<int> taken(10);
    for (int64_t step = 2 * epoch; step < 2 * epoch + 2; ++step) {
      for (const int64_t index : Take(sampler, step, 0)) ++taken[static_cast<size_t>(index)];
    }
    int total = 0;
    for (const int count : taken) {
      EXPECT_LE(count, 1);
      total += count;
    }
    EXPECT_EQ(total, 8);
  }
}

TEST(SamplerTest, WithoutShuffleTheOrderIsTheFiles) {
  const DistributedSampler sampler({.dataset_size = 5, .global_batch = 4, .shuffle = false});
  EXPECT_EQ(Take(sampler, 0, 0), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Take(sampler, 1, 0), (std::vector<int64_t>{4, 0, 1, 2}));
}

}  // namespace
}  // namespace lockstep::data
