// SPDX-License-Identifier: Apache-2.0
// State for newcomers: who has nothing gets it from those that have it, and ranks read each other's
// memory, on every implementation.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "collectives/communicator.h"
#include "collectives/flight_recorder.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"

namespace lockstep {
namespace {

class ReplicateTest : public testing::TestWithParam<Kind> {};

TEST_P(ReplicateTest, WhoHasNothingGetsASliceFromEachHolder) {
  constexpr int kWorld = 4;
  for (const int64_t bytes : {0, 1, 100, 4099, 100000}) {
    std::string state(bytes, 0);
    for (int64_t i = 0; i < bytes; ++i) state[i] = static_cast<char>(i * 31 + i / 256);
    for (unsigned have = 1; have < 1u << kWorld; ++have) {
      Cluster cluster(GetParam(), kWorld, 1 << 18);
      cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
        auto* data = static_cast<char*>(*transport.Allocate(bytes + 1, "the state"));
        const bool holds = (have >> c.rank() & 1) != 0;
        std::ranges::copy(holds ? state : std::string(bytes, 0x55), data);
        ASSERT_TRUE(c.Replicate(data, bytes, holds, Never()).ok());
        const auto [got, want] = std::ranges::mismatch(std::string_view(data, bytes), state);
        ASSERT_EQ(want, state.end()) << "at " << want - state.begin() << " of " << bytes;
        EXPECT_EQ(data[bytes], 0);
      });
    }
  }
}

// Whose watch for stalls shall see that a long copy goes on: who takes, and between hosts who
// gives.
TEST_P(ReplicateTest, WhatMovesIsCounted) {
  constexpr int64_t kBytes = 3 << 20;
  if (GetParam() == Kind::kFake) GTEST_SKIP() << "it moves everything at once";
  if (GetParam() == Kind::kNccl || GetParam() == Kind::kNcclTurns) {
    GTEST_SKIP() << "NCCL does not tell how far it is";
  }
  Cluster cluster(GetParam(), 2, kBytes + (1 << 16));
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    auto* data = static_cast<char*>(*transport.Allocate(kBytes, "the state"));
    const int64_t before = transport.flight_recorder().moves();
    ASSERT_TRUE(c.Barrier(Never()).ok());
    ASSERT_TRUE(
        c.AllReduce(data, 1, DType::kFloat32, ReduceOp::kSum, ReduceOrder::kFixed, Never()).ok());
    ASSERT_TRUE(c.Barrier(Never()).ok());
    const int64_t words = transport.flight_recorder().moves();
    ASSERT_TRUE(c.Replicate(data, kBytes, c.rank() == 0, Never()).ok());
    const int64_t moves = transport.flight_recorder().moves() - words;
    if (c.rank() == 1) {
      EXPECT_GE(moves, 1);
    }
    if (GetParam() == Kind::kHosts) {
      EXPECT_GE(moves, 3);
      EXPECT_LE(words - before, 4) << "words about calls are none";
    }
  });
}

// Also of those who take it from a neighbour's memory, on its host or where that one received it.
TEST_P(ReplicateTest, WhatIsCopiedFromNeighboursIsCounted) {
  constexpr int64_t kCount = 1 << 18;
  constexpr int64_t kBytes = kCount * 4;
  if (GetParam() == Kind::kFake) GTEST_SKIP() << "it moves everything at once";
  if (GetParam() == Kind::kNccl || GetParam() == Kind::kNcclTurns) {
    GTEST_SKIP() << "NCCL does not tell how far it is";
  }
  Cluster cluster(GetParam(), 4, kBytes + (1 << 16));
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    auto* data = static_cast<float*>(*transport.Allocate(kBytes, "the state"));
    const auto moves_of = [&](const auto& call) {
      const int64_t before = transport.flight_recorder().moves();
      EXPECT_TRUE(call().ok());
      EXPECT_TRUE(c.Barrier(Never()).ok());
      return transport.flight_recorder().moves() - before;
    };
    const int64_t replicated =
        moves_of([&] { return c.Replicate(data, kBytes, c.rank() == 0, Never()); });
    const RangeTransfer all{0, kCount, 0, {1, 2, 3}};
    const int64_t exchanged = moves_of(
        [&] { return c.ExchangeRanges(data, kCount, absl::MakeConstSpan(&all, 1), Never()); });
    if (c.rank() == 0) return;
    EXPECT_GE(replicated, 1) << "rank " << c.rank();
    EXPECT_GE(exchanged, 1) << "rank " << c.rank();
  });
}

TEST_P(ReplicateTest, SomebodyMustHaveIt) {
  Cluster cluster(GetParam(), 2, 1 << 16);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    void* data = *transport.Allocate(64, "the state");
    EXPECT_EQ(c.Replicate(data, 64, false, Never()).code(), absl::StatusCode::kInternal);
  });
}

TEST_P(ReplicateTest, SharedPiecesAreReadWhereTheyLie) {
  constexpr int kWorld = 3;
  Cluster cluster(GetParam(), kWorld, 1 << 16);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    auto* first = static_cast<int*>(*transport.Allocate(64, "first"));
    auto* second = static_cast<int*>(*transport.Allocate(128, "second"));
    *first = c.rank();
    const Communicator::SharedPiece pieces[] = {{first, 64}, {second, 128}};
    const auto shared = c.Share(pieces, Never());
    if (!c.abilities().shares_memory) {
      EXPECT_EQ(shared.status().code(), absl::StatusCode::kUnimplemented);
      return;
    }
    ASSERT_TRUE(shared.ok()) << shared.status();
    ASSERT_EQ(shared->size(), kWorld);
    // Whatever is written later is seen too.
    *second = 10 * c.rank();
    ASSERT_TRUE(c.Barrier(Never()).ok());
    for (int r = 0; r < kWorld; ++r) {
      int values[2];
      std::memcpy(&values[0], (*shared)[r][0], sizeof(int));
      std::memcpy(&values[1], (*shared)[r][1], sizeof(int));
      EXPECT_EQ(values[0], r);
      EXPECT_EQ(values[1], 10 * r);
    }
    ASSERT_TRUE(c.Barrier(Never()).ok());
  });
}

TEST_P(ReplicateTest, RanksThatShareOtherSizesAreTold) {
  Cluster cluster(GetParam(), 2, 1 << 16);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    const Communicator::SharedPiece piece{*transport.Allocate(128, "piece"),
                                          c.rank() == 0 ? size_t{64} : size_t{128}};
    if (!c.abilities().shares_memory) return;
    EXPECT_EQ(c.Share(absl::MakeConstSpan(&piece, 1), Never()).status().code(),
              absl::StatusCode::kFailedPrecondition);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReplicateTest, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
