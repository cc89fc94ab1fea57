// SPDX-License-Identifier: Apache-2.0
// Parts of vectors on every implementation: reduced gradients that go to those alone who want them,
// and ranges of a vector that ranks hand each other, as a sharded optimizer needs them.
#include <algorithm>
#include <barrier>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/communicator.h"
#include "collectives/shards.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Wanted = std::vector<std::vector<ElementRange>>;

constexpr int64_t kCount = 1237;
// Between hosts more than goes in one exchange.
constexpr int64_t kLarge = 50021;

class RangesTest : public testing::TestWithParam<Kind> {};

// Small enough that sums are exact.
float Leaf(int shard, int64_t step, int64_t i) {
  return static_cast<float>((shard * 7 + step * 3 + i * 5) % 64);
}

float SumOf(ShardRange shards, int64_t step, int64_t i) {
  float sum = 0;
  for (int shard = shards.begin; shard < shards.end; ++shard) sum += Leaf(shard, step, i);
  return sum;
}

// Returns what each of `world` ranks wants: overlapping, some of it nobody's, one rank almost
// nothing.
Wanted SomeWanted(int world, int64_t count = kCount) {
  Wanted wanted;
  for (int rank = 0; rank < world; ++rank) {
    std::vector<ElementRange> ranges;
    if (rank != 1) {
      for (int64_t at = 16 * rank; at + 176 <= count - 21; at += count / 1237 * 320) {
        ranges.push_back({at, at + 176});
      }
    }
    ranges.push_back({(count - 21) / 16 * 16, count});  // everybody the end
    wanted.push_back(ranges);
  }
  return wanted;
}

struct Vectors {
  Vectors(Communicator& c, Transport& transport, int shards, int64_t elements = kCount)
      : count(elements) {
    for (const ShardRange node : WholeNodes(shards, DealShards(shards, c.world_size(), c.rank()))) {
      nodes.push_back({node, *transport.vectors().Allocate(count, "a node")});
    }
  }
  TreeReduceArgs Fill(const Communicator& c, int64_t step) const {
    for (const NodeBuffer& node : nodes) {
      for (int64_t i = 0; i < count; ++i) {
        const_cast<float*>(node.data)[i] = SumOf(node.node, step, i);
      }
    }
    TreeReduceArgs args;
    args.nodes = nodes;
    args.count = count;
    args.result = const_cast<float*>(nodes[0].data);
    args.step = step;
    return args;
  }
  const int64_t count;
  std::vector<NodeBuffer> nodes;
};

TEST_P(RangesTest, ARankHasTheSumsThatItWants) {
  for (const auto& [world, count] : std::vector<std::pair<int, int64_t>>{{1, kCount},
                                                                         {2, kCount},
                                                                         {3, kCount},
                                                                         {4, kCount},
                                                                         {7, kCount},
                                                                         {4, kLarge},
                                                                         {7, kLarge}}) {
    SCOPED_TRACE(absl::StrCat(world, " ranks, ", count));
    const Wanted wanted = SomeWanted(world, count);
    const int64_t most = count / 16 * 16;
    const std::vector<ElementRange> parts = {
        {0, 400}, {400, 416}, {416, most / 2 / 16 * 16}, {most / 2 / 16 * 16, count}};
    Cluster cluster(GetParam(), world, 1 << 20);
    const int64_t elements = count;
    cluster.Run(1, 8, [&](Communicator& c, Transport& transport) {
      const Vectors vectors(c, transport, 8, elements);
      c.PublishCommitted(0);
      for (int64_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(c.WaitCommitted(step - 1, Never()).ok());
        TreeReduceArgs args = vectors.Fill(c, step);
        args.parts = parts;
        args.wanted = wanted;
        for (int64_t i = 1; i < step && c.reduces_parts(); ++i) {
          ASSERT_TRUE(c.BeginPart(args, Never()).ok());
        }
        const auto slices = c.TreeReduce(args, Never());
        ASSERT_TRUE(slices.ok()) << slices.status();
        std::vector<bool> has(static_cast<size_t>(elements), false);
        int64_t next = 0;
        for (const Slice& slice : *slices) {
          ASSERT_GE(slice.begin, next);
          next = slice.end;
          for (int64_t i = slice.begin; i < slice.end; ++i) {
            ASSERT_EQ(slice.data[i - slice.begin], SumOf({0, 8}, step, i)) << i;
            has[static_cast<size_t>(i)] = true;
          }
        }
        for (const ElementRange& range : wanted[static_cast<size_t>(c.rank())]) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            ASSERT_TRUE(has[static_cast<size_t>(i)]) << i;
          }
        }
        const auto newest = c.NewestReduce();
        ASSERT_TRUE(newest.has_value());
        EXPECT_EQ(newest->step, step);
        EXPECT_FALSE(newest->whole) << "nobody knows what others have got";
        EXPECT_EQ(newest->slices.size(), slices->size());
        c.PublishCommitted(step);
      }
    });
  }
}

TEST_P(RangesTest, RangesGoToThoseWhoGetThem) {
  constexpr int kWorld = 4;
  const std::vector<RangeTransfer> transfers = {{0, 16, 0, {1, 2, 3}},
                                                {16, 400, 2, {0}},
                                                {400, 401, 1, {3, 0}},
                                                {401, 401, 1, {2}},
                                                {500, kCount, 3, {2, 1}}};
  Cluster cluster(GetParam(), kWorld, 1 << 16);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    float* const vector = *transport.vectors().Allocate(kCount, "a vector");
    auto* const state = static_cast<float*>(*transport.Allocate(kCount * sizeof(float), "a state"));
    const auto value = [](int rank, int64_t i) { return static_cast<float>(rank * 10000 + i); };
    for (float* const data : {vector, state, vector}) {
      for (int64_t i = 0; i < kCount; ++i) data[i] = value(c.rank(), i);
      const absl::Status status = c.ExchangeRanges(data, kCount, transfers, Never());
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t i = 0; i < kCount; ++i) {
        int from = c.rank();
        for (const RangeTransfer& transfer : transfers) {
          if (i < transfer.begin || i >= transfer.end) continue;
          if (std::count(transfer.to.begin(), transfer.to.end(), c.rank()) > 0) {
            from = transfer.from;
          }
        }
        ASSERT_EQ(data[i], value(from, i)) << i;
      }
      ASSERT_TRUE(c.Barrier(Never()).ok());
    }
    ASSERT_TRUE(c.ExchangeRanges(vector, kCount, {}, Never()).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(All, RangesTest, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return Name(info.param); });

// What a rank gets is part of the call where it decides what moves.
class DealtTest : public testing::TestWithParam<Kind> {};

TEST_P(DealtTest, RanksThatDealOtherwiseAreTold) {
  Cluster cluster(GetParam(), 2, 1 << 16);
  cluster.Run(1, 2, [](Communicator& c, Transport& transport) {
    const Vectors vectors(c, transport, 2);
    TreeReduceArgs args = vectors.Fill(c, 1);
    const Wanted wanted = {{{0, 16}}, {{0, c.rank() == 0 ? 16 : 32}}};
    args.wanted = wanted;
    const auto slices = c.TreeReduce(args, Never());
    EXPECT_EQ(slices.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(slices.status().message()), HasSubstr("dealt as"));
  });
  cluster.Run(2, 0, [](Communicator& c, Transport& transport) {
    float* const data = *transport.vectors().Allocate(64, "a vector");
    const RangeTransfer transfer = {0, 16, c.rank(), {1 - c.rank()}};
    const absl::Status status =
        c.ExchangeRanges(data, 64, absl::MakeConstSpan(&transfer, 1), Never());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("exchange 1 f32[64] dealt as"));
  });
}

INSTANTIATE_TEST_SUITE_P(All, DealtTest, testing::Values(Kind::kNccl, Kind::kHosts),
                         [](const auto& info) { return Name(info.param); });

// A rank may have to go on with what it wanted when the generation is over, whoever is gone.
TEST(HostsRanges, WhatARankWantedStaysInItsMemory) {
  constexpr int kWorld = 4;
  for (const int64_t count : {kCount, kLarge}) {
    const Wanted wanted = SomeWanted(kWorld, count);
    Cluster cluster(Kind::kTurns, kWorld, 1 << 20);
    std::barrier all_have(kWorld);
    cluster.Run(1, kWorld, [&](Communicator& c, Transport& transport) {
      const Vectors vectors(c, transport, kWorld, count);
      TreeReduceArgs args = vectors.Fill(c, 1);
      args.wanted = wanted;
      ASSERT_TRUE(c.TreeReduce(args, Never()).ok());
      all_have.arrive_and_wait();
      c.Abort("it is over");
      c.ReleaseDead();
      const auto newest = c.NewestReduce();
      ASSERT_TRUE(newest.has_value());
      EXPECT_EQ(newest->step, 1);
      for (const Slice& slice : newest->slices) {
        EXPECT_EQ(slice.data, args.result + slice.begin);
        for (int64_t i = slice.begin; i < slice.end; ++i) {
          ASSERT_EQ(slice.data[i - slice.begin], SumOf({0, kWorld}, 1, i)) << i;
        }
      }
    });
  }
}

// Between hosts a range goes once to each of them, to one of those who get it there.
TEST(HostsRanges, RanksOfAHostTakeRangesFromEachOther) {
  constexpr int kWorld = 6;  // on two hosts in turn
  std::vector<RangeTransfer> transfers;
  for (int i = 0; i < 40; ++i) {
    RangeTransfer transfer = {i * 4096, (i + 1) * 4096, i % kWorld, {}};
    for (int to = 0; to < kWorld; ++to) {
      if (to != transfer.from && (i + to) % 3 != 0) transfer.to.push_back(to);
    }
    transfers.push_back(transfer);
  }
  constexpr int64_t kElements = int64_t{40} * 4096;
  Cluster cluster(Kind::kTurns, kWorld, 1 << 20);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(c.hosts(), (std::vector<int>{0, 1, 0, 1, 0, 1}));
    float* const data = *transport.vectors().Allocate(kElements, "a vector");
    std::fill_n(data, kElements, static_cast<float>(c.rank()));
    ASSERT_TRUE(c.ExchangeRanges(data, kElements, transfers, Never()).ok());
    for (const RangeTransfer& transfer : transfers) {
      const bool gets = std::count(transfer.to.begin(), transfer.to.end(), c.rank()) > 0;
      const auto wanted = static_cast<float>(gets ? transfer.from : c.rank());
      for (int64_t i = transfer.begin; i < transfer.end; ++i) ASSERT_EQ(data[i], wanted) << i;
    }
  });
}

}  // namespace
}  // namespace lockstep
