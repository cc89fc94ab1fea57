// SPDX-License-Identifier: Apache-2.0
// TreeReduce on every implementation: the serial sum's bits for every deal of the shards.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "collectives/shards.h"
#include "common/check.h"
#include "common/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"

namespace lockstep {
namespace {

class TreeTest : public testing::TestWithParam<Kind> {};

// Floats whose sum depends on the order, with subnormals and an infinity here and there.
float Leaf(int shard, int64_t step, int64_t i) {
  uint32_t h = static_cast<uint32_t>(shard * 2654435761u + step * 40503u + i * 2246822519u);
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  if (h % 211 == 0) return std::numeric_limits<float>::denorm_min() * static_cast<float>(h % 7);
  if (h % 1009 == 0) return std::numeric_limits<float>::infinity();
  return std::ldexp(static_cast<float>(h >> 8) / 16777216.0f - 0.5f, static_cast<int>(h % 24));
}

// The sums of nodes, each counted once for all ranks, deals and transports. Several threads may
// ask.
class Sums {
 public:
  // The sums of the leaves of `range` in `step`: `count` elements, of which in each node the first
  // `rounded` are in bf16.
  const std::vector<float>& Of(ShardRange range, int64_t step, int64_t count, int64_t rounded) {
    absl::MutexLock lock(&mutex_);
    return Make(range, step, count, rounded);
  }

 private:
  const std::vector<float>& Make(ShardRange range, int64_t step, int64_t count, int64_t rounded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<float>& sums = sums_[{range.begin, range.end, step, count, rounded}];
    if (!sums.empty()) return sums;
    sums.resize(count);
    if (range.size() == 1) {
      for (int64_t i = 0; i < count; ++i) sums[i] = Leaf(range.begin, step, i);
    } else {
      const int middle = TreeSplit(range);
      const std::vector<float>& left = Make({range.begin, middle}, step, count, rounded);
      const std::vector<float>& right = Make({middle, range.end}, step, count, rounded);
      for (int64_t i = 0; i < count; ++i) sums[i] = left[i] + right[i];
    }
    for (int64_t i = 0; i < rounded; ++i) sums[i] = BFloat16::FromFloat(sums[i]).ToFloat();
    return sums;
  }

  absl::Mutex mutex_;
  // References into a map stay what they are. By first and last shard, step, count and rounded.
  std::map<std::array<int64_t, 5>, std::vector<float>> sums_ ABSL_GUARDED_BY(mutex_);
};

Sums& SharedSums() {
  static auto* const sums = new Sums;
  return *sums;
}

// One worker: puts its whole nodes into the arena, reduces, compares with the serial sum.
// With `parts`, begins as many of them early as the step's number says. The first `rounded`
// elements are sums in bf16.
void ReduceAndCheck(Communicator& c, Transport& transport, int shards, int64_t count, bool in_place,
                    const std::vector<ElementRange>& parts = {}, int64_t rounded = 0) {
  std::vector<NodeBuffer> nodes;
  for (const ShardRange node : WholeNodes(shards, DealShards(shards, c.world_size(), c.rank()))) {
    auto memory = transport.vectors().Allocate(count, "node");
    ASSERT_TRUE(memory.ok()) << memory.status();
    nodes.push_back({node, *memory});
  }
  auto* result = const_cast<float*>(nodes[0].data);
  if (!in_place) {
    auto memory = transport.vectors().Allocate(count, "result");
    ASSERT_TRUE(memory.ok()) << memory.status();
    result = *memory;
  }
  c.PublishCommitted(0);
  for (int64_t step = 1; step <= 3; ++step) {
    auto committed = c.WaitCommitted(step - 1, Never());
    ASSERT_TRUE(committed.ok()) << committed;
    for (const NodeBuffer& node : nodes) {
      std::ranges::copy(SharedSums().Of(node.node, step, count, rounded),
                        const_cast<float*>(node.data));
    }
    TreeReduceArgs args;
    args.nodes = nodes;
    args.count = count;
    args.result = result;
    args.step = step;
    args.parts = parts;
    args.rounded = rounded;
    for (int64_t i = 0; i < std::min<int64_t>(step, parts.size()) && c.reduces_parts(); ++i) {
      const auto begun = c.BeginPart(args, Never());
      ASSERT_TRUE(begun.ok()) << begun;
    }
    const auto slices = c.TreeReduce(args, Never());
    ASSERT_TRUE(slices.ok()) << slices.status();
    const std::vector<float>& want = SharedSums().Of({0, shards}, step, count, rounded);
    int64_t next = 0;
    for (const Slice& part : *slices) {
      ASSERT_EQ(part.begin, next);
      next = part.end;
      if (std::memcmp(part.data, &want[part.begin], (part.end - part.begin) * sizeof(float)) == 0)
        continue;
      for (int64_t i = part.begin; i < part.end; ++i) {
        ASSERT_EQ(std::memcmp(&part.data[i - part.begin], &want[i], sizeof(float)), 0)
            << shards << " shards, element " << i << ": " << part.data[i - part.begin] << " is not "
            << want[i];
      }
    }
    ASSERT_EQ(next, count);
    c.PublishCommitted(step);
  }
}

TEST_P(TreeTest, EveryDealGivesTheSerialBits) {
  for (const int shards : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    for (int world = 1; world <= shards; ++world) {
      if (shards == 16 && world > 8) continue;
      Cluster cluster(GetParam(), world, 1 << 20);
      cluster.Run(1, shards, [&](Communicator& c, Transport& transport) {
        ReduceAndCheck(c, transport, shards, 1237, (shards + world) % 2 == 0);
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Small vectors and large ones, limits within a slice, a chunk and a line.
TEST_P(TreeTest, RoundedSumsAreThoseOfEveryDeal) {
  for (const int shards : {1, 2, 3, 4, 7}) {
    for (int world = 1; world <= shards; ++world) {
      for (const auto& [count, rounded] :
           std::vector<std::pair<int64_t, int64_t>>{{1237, 1200}, {30011, 29989}, {30011, 14011}}) {
        Cluster cluster(GetParam(), world, 1 << 21);
        const int64_t elements = count, limit = rounded;
        cluster.Run(1, shards, [&](Communicator& c, Transport& transport) {
          if (!c.abilities().rounds) return;
          ReduceAndCheck(c, transport, shards, elements, world % 2 == 0, {}, limit);
        });
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(TreeTest, PartsThatAreBegunEarlyChangeNoBit) {
  for (const int shards : {2, 3, 5, 8}) {
    for (const int world : {1, 2, shards}) {
      Cluster cluster(GetParam(), world, 1 << 20);
      cluster.Run(1, shards, [&](Communicator& c, Transport& transport) {
        ReduceAndCheck(c, transport, shards, 1237, world == 2, {{0, 400}, {400, 416}, {416, 1237}});
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

// So large that between hosts data moves before TreeReduce; parts of all lengths, and a rest.
TEST_P(TreeTest, LargePartsThatAreBegunEarlyChangeNoBit) {
  const std::vector<ElementRange> parts = {
      {0, 30'000}, {30'000, 30'016}, {30'016, 90'032}, {90'032, 119'984}};
  for (const auto& [shards, world] : {std::pair{2, 2}, {5, 4}, {8, 4}, {7, 7}}) {
    for (const int64_t rounded : {int64_t{0}, int64_t{100'003}}) {
      Cluster cluster(GetParam(), world, 4 << 20);
      cluster.Run(1, shards, [&, shards = shards](Communicator& c, Transport& transport) {
        if (rounded > 0 && !c.abilities().rounds) return;
        ReduceAndCheck(c, transport, shards, 120'005, shards % 2 == 0, parts, rounded);
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Returns what lies at `at` now, whoever else writes there.
float Peek(const float* at) {
  static const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  float value = 0;
  const auto read = ::pread(memory, &value, sizeof(value), reinterpret_cast<intptr_t>(at));
  LS_CHECK_EQ(read, static_cast<ssize_t>(sizeof(value)));
  return value;
}

// Ranks of different hosts that have begun a part get its sums while they do something else.
TEST(TreePartsTest, SumsComeWhileTheCallerComputes) {
  const std::vector<ElementRange> parts = {{0, 60'000}, {60'000, 120'000}};
  Cluster cluster(Kind::kTurns, 4, 4 << 20);
  cluster.Run(1, 4, [&](Communicator& c, Transport& transport) {
    float* const node = *transport.vectors().Allocate(120'000, "node");
    float* const result = *transport.vectors().Allocate(120'000, "result");
    std::fill_n(node, 120'000, static_cast<float>(1 << c.rank()));
    const NodeBuffer mine{{c.rank(), c.rank() + 1}, node};
    TreeReduceArgs args;
    args.nodes = absl::MakeConstSpan(&mine, 1);
    args.count = 120'000;
    args.result = result;
    args.parts = parts;
    ASSERT_TRUE(c.BeginPart(args, Never()).ok());
    // Of its own slice of the part a rank has all sums, of others what comes to it.
    const float* const own = result + SliceOf(60'000, 4, c.rank()).begin;
    const absl::Time until = Never();
    while (Peek(own) != 15 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(Peek(own), 15);
    EXPECT_EQ(Peek(result + 100'000), 0) << "of a part that was not begun";
    const auto slices = c.TreeReduce(args, Never());
    ASSERT_TRUE(slices.ok()) << slices.status();
    int64_t count = 0;
    for (const Slice& slice : *slices) {
      count += std::count(slice.data, slice.data + (slice.end - slice.begin), 15.0f);
    }
    EXPECT_EQ(count, 120'000);
  });
}

// Without a thread the data moves in TreeReduce; hosts may differ in it.
TEST(TreePartsTest, ARankThatMovesNothingMeanwhileIsNoTrouble) {
  for (const bool all : {false, true}) {
    Cluster cluster(Kind::kTurns, 4, 4 << 20, [all](int rank) { return !all && rank % 3 == 0; });
    cluster.Run(1, 4, [&](Communicator& c, Transport& transport) {
      ReduceAndCheck(c, transport, 4, 120'005, true, {{0, 60'000}, {60'000, 90'000}});
    });
  }
}

// The second call is compared like any other, while data of the first is on its way.
TEST(TreePartsTest, WhoEndsItOtherwiseIsNamedByAll) {
  const std::vector<ElementRange> parts = {{0, 60'000}, {60'000, 120'000}};
  for (const Kind kind : {Kind::kHosts, Kind::kTurns, Kind::kNeighbours}) {
    SCOPED_TRACE(Name(kind));
    Cluster cluster(kind, 4, 4 << 20);
    cluster.Run(1, 4, [&](Communicator& c, Transport& transport) {
      const NodeBuffer mine{{c.rank(), c.rank() + 1}, *transport.vectors().Allocate(120'000, "n")};
      TreeReduceArgs args;
      args.nodes = absl::MakeConstSpan(&mine, 1);
      args.count = 120'000;
      args.result = const_cast<float*>(mine.data);
      args.parts = parts;
      ASSERT_TRUE(c.BeginPart(args, Never()).ok());
      const absl::Status status =
          c.rank() == 2 ? c.Barrier(Never()) : c.TreeReduce(args, Never()).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("barrier 2"));
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("tree_reduce 2"));
    });
  }
}

TEST_P(TreeTest, SmallCounts) {
  for (const int64_t count : {0, 1, 15, 17, 64}) {
    Cluster cluster(GetParam(), 3, 1 << 16);
    cluster.Run(1, 5, [&](Communicator& c, Transport& transport) {
      ReduceAndCheck(c, transport, 5, count, count % 2 == 0);
    });
  }
}

// So large that what goes between hosts goes by slices and in several chunks.
TEST_P(TreeTest, LargeVectors) {
  for (const auto& [shards, world] : {std::pair{2, 2}, {3, 3}, {5, 4}, {8, 4}, {7, 7}, {8, 8}}) {
    Cluster cluster(GetParam(), world, 4 << 20);
    cluster.Run(1, shards, [&, shards = shards](Communicator& c, Transport& transport) {
      ReduceAndCheck(c, transport, shards, 120'005, shards % 2 == 0);
    });
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(TreeTest, TheNextGenerationWorksOnTheSameMemory) {
  Cluster cluster(GetParam(), 3, 1 << 20);
  for (int64_t generation = 1; generation <= 3; ++generation) {
    cluster.Run(generation, 6, [&](Communicator& c, Transport& transport) {
      EXPECT_THAT(c.CommittedSteps(), testing::SizeIs(3));
      ReduceAndCheck(c, transport, 6, 500, generation % 2 == 0);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, TreeTest, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
