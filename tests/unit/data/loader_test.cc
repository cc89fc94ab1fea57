// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep::data {
namespace {

// Sample i is {i, i + 0.5} with label i % 3; one chosen sample is damaged.
class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(int64_t size, int64_t damaged = -1) : size_(size), damaged_(damaged) {}
  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return 3; }
  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    const absl::Span<const int64_t> indices = request.indices;
    auto* const samples = static_cast<float*>(fields[0]);
    auto* const labels = static_cast<int32_t*>(fields[1]);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == damaged_) return absl::DataLossError(absl::StrCat("sample ", damaged_));
      samples[2 * i] = static_cast<float>(indices[i]);
      samples[2 * i + 1] = static_cast<float>(indices[i]) + 0.5f;
      labels[i] = static_cast<int32_t>(indices[i] % 3);
    }
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
  const int64_t damaged_;
  const std::vector<FieldSpec> fields_ = ClassificationFields({2}, 3);
};

void ExpectIs(const Batch& batch, const DistributedSampler& sampler, int64_t step, int shard) {
  ASSERT_EQ(batch.step, step);
  ASSERT_EQ(batch.shard, shard);
  ASSERT_EQ(batch.samples, sampler.samples_per_shard());
  ASSERT_EQ(batch.fields.size(), 2u);
  for (const void* field : batch.fields) {
    ASSERT_EQ(reinterpret_cast<uintptr_t>(field) % 64, 0u);
  }
  const auto* inputs = static_cast<const float*>(batch.fields[0]);
  const auto* labels = static_cast<const int32_t*>(batch.fields[1]);
  std::vector<int64_t> ids(static_cast<size_t>(batch.samples));
  sampler.Indices(step, shard, absl::MakeSpan(ids));
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(inputs[2 * i], static_cast<float>(ids[i]));
    ASSERT_EQ(labels[i], ids[i] % 3);
  }
  ASSERT_EQ(batch.ids_hash, HashIds(ids));
}

class LoaderTest : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Loader> Make(const Dataset& dataset, int64_t end_step, int prefetch = 4) {
    auto loader = Loader::Create(
        &dataset, &sampler_, {.threads = GetParam(), .prefetch = prefetch, .end_step = end_step});
    EXPECT_TRUE(loader.ok()) << loader.status();
    return *std::move(loader);
  }
  const CountingDataset dataset_{1000};
  const DistributedSampler sampler_{
      {.dataset_size = 1000, .global_batch = 24, .shards = 6, .seed = 1}};
};

TEST_P(LoaderTest, BatchesComeInOrderUntilTheEnd) {
  const auto loader = Make(dataset_, 100);
  loader->Restart(0, 1, 4);
  for (int64_t step = 0; step < 100; ++step) {
    for (int shard = 1; shard < 4; ++shard) {
      const auto batch = loader->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      ASSERT_NO_FATAL_FAILURE(ExpectIs(*batch, sampler_, step, shard));
    }
  }
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_GE(loader->wait_seconds(), 0);
}

TEST_P(LoaderTest, TheLastTwoBatchesStayValid) {
  const auto loader = Make(dataset_, 200, /*prefetch=*/2);
  loader->Restart(0, 0, 1);
  Batch before = *loader->Next();
  for (int64_t step = 1; step < 200; ++step) {
    const Batch now = *loader->Next();
    ASSERT_NO_FATAL_FAILURE(ExpectIs(before, sampler_, step - 1, 0));
    ASSERT_NO_FATAL_FAILURE(ExpectIs(now, sampler_, step, 0));
    if (step % 7 == 0) {
      loader->Restart(step + 1, 0, 1);
      ASSERT_NO_FATAL_FAILURE(ExpectIs(before, sampler_, step - 1, 0));
      ASSERT_NO_FATAL_FAILURE(ExpectIs(now, sampler_, step, 0));
    }
    before = now;
  }
}

TEST_P(LoaderTest, RestartInMidFlightChangesTheRange) {
  const auto loader = Make(dataset_, 1000);
  for (int64_t round = 0; round < 50; ++round) {
    const int begin = static_cast<int>(round % 5);
    loader->Restart(round * 3, begin, 6);
    for (int taken = 0; taken < round % 9; ++taken) {
      const auto batch = loader->Next();
      ASSERT_TRUE(batch.ok());
      ASSERT_NO_FATAL_FAILURE(
          ExpectIs(*batch, sampler_, round * 3 + taken / (6 - begin), begin + taken % (6 - begin)));
    }
  }
}

TEST_P(LoaderTest, AnEmptyRangeAndAPassedEndHaveNoBatches) {
  const auto loader = Make(dataset_, 10);
  loader->Restart(3, 2, 2);
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kOutOfRange);
  loader->Restart(11, 0, 2);
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kOutOfRange);
  loader->Restart(9, 0, 1);
  EXPECT_TRUE(loader->Next().ok());
}

TEST_P(LoaderTest, AnErrorComesAtItsPlace) {
  std::vector<int64_t> ids(4);
  sampler_.Indices(7, 2, absl::MakeSpan(ids));
  const CountingDataset damaged(1000, ids[1]);
  const auto loader = Make(damaged, 100);
  loader->Restart(5, 2, 3);
  EXPECT_TRUE(loader->Next().ok());
  EXPECT_TRUE(loader->Next().ok());
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kDataLoss);
  loader->Restart(8, 2, 3);
  EXPECT_TRUE(loader->Next().ok());
}

TEST_P(LoaderTest, EndsWhileBatchesAreBeingMade) {
  for (int i = 0; i < 20; ++i) {
    const auto loader = Make(dataset_, 1000);
    if (i % 2 == 0) loader->Restart(0, 0, 6);
    if (i % 4 == 0) {
      EXPECT_TRUE(loader->Next().ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, LoaderTest, testing::Values(0, 1, 3));

TEST(HashIdsTest, DependsOnIdsAndOrder) {
  EXPECT_NE(HashIds({1, 2, 3}), HashIds({1, 3, 2}));
  EXPECT_NE(HashIds({0}), HashIds({0, 0}));
  EXPECT_EQ(HashIds({5, 6}), HashIds({5, 6}));
}

}  // namespace
}  // namespace lockstep::data
