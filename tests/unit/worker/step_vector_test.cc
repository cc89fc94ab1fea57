// SPDX-License-Identifier: Apache-2.0
#include "worker/state/step_vector.h"

#include <vector>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

// Of buckets with so many elements each.
std::vector<ElementRange> PartsOf(const std::vector<int64_t>& sizes) {
  std::vector<engine::Bucket> buckets;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    buckets.push_back({end, end + size});
    end += size;
  }
  return ReductionParts(buckets);
}

TEST(ReductionParts, FollowEachOtherOverAllBuckets) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{16},
                                            {16, 16, 160},
                                            {1600, 16, 16, 16},
                                            std::vector<int64_t>(500, 32)}) {
    const std::vector<ElementRange> parts = PartsOf(sizes);
    int64_t next = 0;
    for (const ElementRange& part : parts) {
      EXPECT_EQ(part.begin, next);
      EXPECT_GT(part.end, part.begin);
      next = part.end;
    }
    int64_t all = 0;
    for (const int64_t size : sizes) all += size;
    EXPECT_EQ(next, all);
    EXPECT_LE(parts.size(), static_cast<size_t>(kMostParts) + 1);
  }
  EXPECT_TRUE(ReductionParts({}).empty());
}

TEST(ReductionParts, AreBucketsWhereTheseAreFewAndEqualPartsWhereTheyAreMany) {
  EXPECT_EQ(PartsOf({160, 160, 160}).size(), 3);
  const std::vector<ElementRange> parts = PartsOf(std::vector<int64_t>(1600, 16));
  ASSERT_EQ(parts.size(), 16);
  for (const ElementRange& part : parts) EXPECT_EQ(part.size(), 1600);
}

}  // namespace
}  // namespace lockstep::worker
