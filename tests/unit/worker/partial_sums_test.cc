// SPDX-License-Identifier: Apache-2.0
#include "worker/state/partial_sums.h"

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/half.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

std::vector<float> Leaf(int shard, int64_t count) {
  std::mt19937 generator(shard + 1);
  std::normal_distribution<float> normal;
  std::vector<float> leaf(count);
  for (float& value : leaf) value = normal(generator);
  return leaf;
}

// The tree's sum over `node`, by its definition.
std::vector<float> TreeSum(ShardRange node, int64_t count) {
  if (node.size() == 1) return Leaf(node.begin, count);
  const int split = TreeSplit(node);
  std::vector<float> left = TreeSum({node.begin, split}, count);
  const std::vector<float> right = TreeSum({split, node.end}, count);
  for (int64_t i = 0; i < count; ++i) left[i] += right[i];
  return left;
}

TEST(PartialSums, ContributesTheWholeNodesOfTheTree) {
  const int64_t count = 33;
  HostVectors host(nullptr);  // adds only
  for (const int shards : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    for (int world = 1; world <= shards; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        const ShardRange held = DealShards(shards, world, rank);
        const int needed = PartialSums::BuffersFor(shards, held);
        std::vector<std::vector<float>> memory(needed, std::vector<float>(count, 99.0f));
        std::vector<float*> buffers;
        for (auto& buffer : memory) buffers.push_back(buffer.data());
        PartialSums sums(shards, count, buffers, &host);
        for (int step = 0; step < 2; ++step) {  // a second step starts clean
          sums.Begin(held);
          for (int shard = held.begin; shard < held.end; ++shard) {
            const std::vector<float> leaf = Leaf(shard, count);
            std::memcpy(sums.NextLeaf(), leaf.data(), count * sizeof(float));
            if (step == 1 && shard + 1 == held.end) {  // the last one in parts, but for its end
              ASSERT_TRUE(sums.PartDone(0, 16).ok());
              ASSERT_TRUE(sums.PartDone(16, 32).ok());
            }
            ASSERT_TRUE(sums.LeafDone().ok());
          }
          const std::vector<ShardRange> whole = WholeNodes(shards, held);
          ASSERT_EQ(sums.nodes().size(), whole.size());
          for (size_t i = 0; i < whole.size(); ++i) {
            EXPECT_EQ(sums.nodes()[i].node, whole[i]);
            EXPECT_EQ(sums.whole()[i].node, whole[i]);
            EXPECT_EQ(sums.whole()[i].data, sums.nodes()[i].data);
            const std::vector<float> expected = TreeSum(whole[i], count);
            EXPECT_EQ(0, std::memcmp(sums.nodes()[i].data, expected.data(), count * 4))
                << shards << " shards, world " << world << ", rank " << rank;
          }
        }
      }
    }
  }
}

// A GPU's memory, which adds when it is waited for and not before.
class LateVectors : public VectorMemory {
 public:
  absl::StatusOr<float*> Allocate(int64_t, const std::string&) override {
    return absl::UnimplementedError("not of this memory");
  }
  bool on_host() const override { return false; }
  absl::Status Add(float* a, const float* b, int64_t count) override {
    begun_.emplace_back([=] {
      for (int64_t i = 0; i < count; ++i) a[i] += b[i];
    });
    return absl::OkStatus();
  }
  absl::Status Wait() override {
    for (const auto& addition : std::exchange(begun_, {})) addition();
    return absl::OkStatus();
  }
  absl::Status Write(float*, const float*, int64_t) override { return Wait(); }
  absl::Status Read(float*, const float*, int64_t) override { return Wait(); }

 private:
  std::vector<std::function<void()>> begun_;
};

// A leaf is not written where an addend lies that is still to be read.
TEST(PartialSums, WaitsForAdditionsBeforeTheNextLeaf) {
  constexpr int kShards = 7;
  constexpr int64_t kCount = 33;
  LateVectors late;
  std::vector<std::vector<float>> memory(PartialSums::BuffersFor(kShards, {0, kShards}),
                                         std::vector<float>(kCount, 99.0f));
  std::vector<float*> buffers;
  for (auto& buffer : memory) buffers.push_back(buffer.data());
  PartialSums sums(kShards, kCount, buffers, &late);
  sums.Begin({0, kShards});
  for (int shard = 0; shard < kShards; ++shard) {
    const std::vector<float> leaf = Leaf(shard, kCount);
    std::memcpy(sums.NextLeaf(), leaf.data(), kCount * sizeof(float));
    ASSERT_TRUE(sums.LeafDone().ok());
  }
  ASSERT_TRUE(late.Wait().ok());  // as whoever reduces them comes after it
  ASSERT_EQ(sums.nodes().size(), 1u);
  EXPECT_EQ(std::vector<float>(sums.nodes()[0].data, sums.nodes()[0].data + kCount),
            TreeSum({0, kShards}, kCount));
}

TEST(PartialSums, NeedsLogarithmicallyManyBuffers) {
  EXPECT_EQ(PartialSums::BuffersForWorstDeal(4, 4, 4), 1);
  EXPECT_EQ(PartialSums::BuffersForWorstDeal(4, 1, 4), 3);
  EXPECT_EQ(PartialSums::BuffersForWorstDeal(1, 1, 1), 1);
  EXPECT_LE(PartialSums::BuffersForWorstDeal(64, 1, 64), 12);
}

// Leaves and sums up to a limit, with the bits of one who adds the whole tree.
TEST(PartialSums, RoundsEachNodeWhereItIsTold) {
  constexpr int64_t kCount = 45, kRounded = 37;
  const auto rounded = [](float x) { return BFloat16::FromFloat(x).ToFloat(); };
  const auto leaf = [&](int shard) {
    std::vector<float> values = Leaf(shard, kCount);
    for (int64_t i = 0; i < kRounded; ++i) values[i] = rounded(values[i]);
    return values;
  };
  HostVectors host(nullptr);  // adds only
  std::vector<std::vector<float>> memory(4, std::vector<float>(kCount, 99.0f));
  std::vector<float*> buffers;
  for (auto& buffer : memory) buffers.push_back(buffer.data());
  PartialSums sums(4, kCount, buffers, &host, kRounded);
  sums.Begin({0, 4});
  for (int shard = 0; shard < 4; ++shard) {
    const std::vector<float> values = Leaf(shard, kCount);
    std::memcpy(sums.NextLeaf(), values.data(), kCount * sizeof(float));
    if (shard == 3) {
      ASSERT_TRUE(sums.PartDone(0, 16).ok());
    }
    ASSERT_TRUE(sums.LeafDone().ok());
  }
  ASSERT_EQ(sums.nodes().size(), 1u);
  for (int64_t i = 0; i < kCount; ++i) {
    const float left = leaf(0)[i] + leaf(1)[i], right = leaf(2)[i] + leaf(3)[i];
    const float want = i < kRounded ? rounded(rounded(left) + rounded(right)) : left + right;
    EXPECT_EQ(sums.nodes()[0].data[i], want) << i;
  }
}

}  // namespace
}  // namespace lockstep::worker
