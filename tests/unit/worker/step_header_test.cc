// SPDX-License-Identifier: Apache-2.0
#include "worker/control/step_header.h"

#include <vector>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

// The sum of the leaves, cut into slices of `cut` elements, as a collective would leave it.
struct Reduced {
  std::vector<float> sum;
  std::vector<Slice> slices;
};

Reduced Reduce(const std::vector<std::vector<float>>& leaves, int64_t begin, int64_t cut) {
  Reduced reduced;
  reduced.sum.assign(begin + static_cast<int64_t>(leaves[0].size()), -7.0f);
  for (size_t i = 0; i < leaves[0].size(); ++i) {
    float total = 0;
    for (const auto& leaf : leaves) total += leaf[i];
    reduced.sum[begin + i] = total;
  }
  for (int64_t at = 0; at < static_cast<int64_t>(reduced.sum.size()); at += cut) {
    const int64_t end = std::min<int64_t>(at + cut, reduced.sum.size());
    reduced.slices.push_back({at, end, reduced.sum.data() + at});
  }
  return reduced;
}

TEST(StepHeader, CountIsAMultipleOfACacheLine) {
  for (int shards = 1; shards < 40; ++shards) {
    EXPECT_EQ(StepHeader::Count(shards) % 16, 0);
    EXPECT_GE(StepHeader::Count(shards), 16 + 4 * shards);
  }
}

TEST(StepHeader, HashesComeBackWholeWhereverTheSlicesCut) {
  const int shards = 5;
  std::vector<std::vector<float>> leaves(shards, std::vector<float>(StepHeader::Count(shards)));
  std::vector<uint64_t> hashes;
  for (int shard = 0; shard < shards; ++shard) {
    hashes.push_back(0xFFFEDCBA98765432u ^ (uint64_t{0x1111111111111111u} * shard));
    StepHeader::Write(shards, shard, hashes.back(), {}, leaves[shard].data());
  }
  for (const int64_t cut : {1, 16, 48, 1000}) {
    const Reduced reduced = Reduce(leaves, 32, cut);
    StepHeader::Contents contents;
    StepHeader::Read(shards, 32, reduced.slices, &contents);
    EXPECT_EQ(contents.ids_hash, hashes) << "cut " << cut;
    EXPECT_FALSE(contents.drain);
    EXPECT_FALSE(contents.save);
    EXPECT_FALSE(contents.regroup);
  }
}

TEST(StepHeader, OneWishIsSeenByAll) {
  const int shards = 4;
  std::vector<std::vector<float>> leaves(shards, std::vector<float>(StepHeader::Count(shards)));
  for (int shard = 0; shard < shards; ++shard) {
    StepHeader::Write(shards, shard, 0, {shard == 2, shard == 1, shard == 3}, leaves[shard].data());
  }
  const Reduced reduced = Reduce(leaves, 0, 16);
  StepHeader::Contents contents;
  StepHeader::Read(shards, 0, reduced.slices, &contents);
  EXPECT_TRUE(contents.drain);
  EXPECT_TRUE(contents.save);
  EXPECT_TRUE(contents.regroup);
}

}  // namespace
}  // namespace lockstep::worker
