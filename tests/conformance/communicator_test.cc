// SPDX-License-Identifier: Apache-2.0
// What every Communicator does: each test runs on every implementation.
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "collectives/flight_recorder.h"
#include "collectives/group_end.h"
#include "collectives/reduce.h"
#include "common/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Less under sanitizers, which take three to ten times as long for each element.
#if defined(LOCKSTEP_SANITIZE_THREAD) || defined(LOCKSTEP_SANITIZE_ADDRESS)
constexpr int64_t kMillion = 1 << 16;
#else
constexpr int64_t kMillion = 1 << 20;
#endif
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64,  DType::kInt32,  DType::kInt64,
                             DType::kUInt8,   DType::kBFloat16, DType::kFloat16};

// Small integers: exact in every dtype, and so are sums over 8 ranks.
int Value(int rank, int64_t i) { return static_cast<int>((rank * 5 + i * 7 + i / 64) % 16); }

template <typename T>
void FillAs(std::vector<char>* bytes, int64_t count, const std::function<int(int64_t)>& value) {
  for (int64_t i = 0; i < count; ++i) {
    T element;
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      element = T::FromFloat(static_cast<float>(value(i)));
    } else {
      element = static_cast<T>(value(i));
    }
    std::memcpy(bytes->data() + i * sizeof(T), &element, sizeof(T));
  }
}

std::vector<char> Buffer(DType dtype, int64_t count, const std::function<int(int64_t)>& value) {
  std::vector<char> bytes(count * SizeOf(dtype) + 1);  // never empty, so that data() is a place
  switch (dtype) {
    case DType::kFloat32:
      FillAs<float>(&bytes, count, value);
      break;
    case DType::kFloat64:
      FillAs<double>(&bytes, count, value);
      break;
    case DType::kInt32:
      FillAs<int32_t>(&bytes, count, value);
      break;
    case DType::kInt64:
      FillAs<int64_t>(&bytes, count, value);
      break;
    case DType::kUInt8:
      FillAs<uint8_t>(&bytes, count, value);
      break;
    case DType::kBFloat16:
      FillAs<BFloat16>(&bytes, count, value);
      break;
    case DType::kFloat16:
      FillAs<Float16>(&bytes, count, value);
      break;
  }
  return bytes;
}

// ---- the data movement, over worlds, counts and dtypes ----

class DataTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  Kind kind() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  // A million of every dtype for one world, of fp32 for all; over sockets for a few.
  bool Skips(int64_t count, DType dtype) const {
    if (count != kMillion) return false;
    if (kind() >= Kind::kHosts && world() > 4) return true;
    return dtype != DType::kFloat32 && (world() != 3 || kind() >= Kind::kHosts);
  }
  // Calls `each` for every case, on one communicator.
  void ForEach(const std::function<void(Communicator&, int64_t, DType)>& each) {
    Cluster cluster(kind(), world(), 0);
    cluster.Run(1, 0, [&](Communicator& communicator, Transport&) {
      for (const DType dtype : kDTypes) {
        for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{4001}, kMillion}) {
          if (Skips(count, dtype)) continue;
          each(communicator, count, dtype);
        }
      }
    });
  }
};

TEST_P(DataTest, AllReduce) {
  ForEach([&](Communicator& c, int64_t count, DType dtype) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      if (op != ReduceOp::kSum && count == kMillion) continue;
      auto data = Buffer(dtype, count, [&](int64_t i) { return Value(c.rank(), i); });
      const auto expected = Buffer(dtype, count, [&](int64_t i) {
        int result = Value(0, i);
        for (int r = 1; r < world(); ++r) {
          const int next = Value(r, i);
          result = op == ReduceOp::kSum   ? result + next
                   : op == ReduceOp::kMax ? std::max(result, next)
                                          : std::min(result, next);
        }
        return result;
      });
      const auto order = count % 2 == 0 ? ReduceOrder::kFixed : ReduceOrder::kFastest;
      const auto status = c.AllReduce(data.data(), count, dtype, op, order, Never());
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(data == expected) << DTypeName(dtype) << " " << count << " rank " << c.rank();
    }
  });
}

TEST_P(DataTest, ReduceScatter) {
  ForEach([&](Communicator& c, int64_t count, DType dtype) {
    if (count == kMillion) count /= world();
    const auto input =
        Buffer(dtype, count * world(), [&](int64_t i) { return Value(c.rank(), i); });
    const auto expected = Buffer(dtype, count, [&](int64_t i) {
      int sum = 0;
      for (int r = 0; r < world(); ++r) sum += Value(r, c.rank() * count + i);
      return sum;
    });
    auto output = Buffer(dtype, count, [](int64_t) { return 99; });
    const auto status =
        c.ReduceScatter(input.data(), output.data(), count, dtype, ReduceOp::kSum, Never());
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output == expected) << DTypeName(dtype) << " " << count << " rank " << c.rank();
  });
}

TEST_P(DataTest, AllGather) {
  ForEach([&](Communicator& c, int64_t count, DType dtype) {
    if (count == kMillion) count /= world();
    const auto input = Buffer(dtype, count, [&](int64_t i) { return Value(c.rank(), i); });
    const auto expected = Buffer(dtype, count * world(), [&](int64_t i) {
      return Value(static_cast<int>(i / std::max<int64_t>(count, 1)),
                   i % std::max<int64_t>(count, 1));
    });
    auto output = Buffer(dtype, count * world(), [](int64_t) { return 99; });
    const auto status = c.AllGather(input.data(), output.data(), count, dtype, Never());
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output == expected) << DTypeName(dtype) << " " << count << " rank " << c.rank();
  });
}

TEST_P(DataTest, Broadcast) {
  ForEach([&](Communicator& c, int64_t count, DType dtype) {
    for (const int root : {0, world() - 1}) {
      auto data = Buffer(dtype, count, [&](int64_t i) { return Value(c.rank(), i); });
      const auto expected = Buffer(dtype, count, [&](int64_t i) { return Value(root, i); });
      const auto status = c.Broadcast(data.data(), count, dtype, root, Never());
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(data == expected) << DTypeName(dtype) << " " << count << " rank " << c.rank();
    }
  });
}

TEST_P(DataTest, SendAndRecvAroundTheRing) {
  if (world() == 1) return;
  ForEach([&](Communicator& c, int64_t count, DType dtype) {
    const int right = (c.rank() + 1) % world();
    const int left = (c.rank() + world() - 1) % world();
    const auto mine = Buffer(dtype, count, [&](int64_t i) { return Value(c.rank(), i); });
    const auto expected = Buffer(dtype, count, [&](int64_t i) { return Value(left, i); });
    auto got = Buffer(dtype, count, [](int64_t) { return 99; });
    // Rank 0 sends first, everyone else passes on: no two wait for each other.
    const auto send = [&] { return c.Send(mine.data(), count, dtype, right, Never()); };
    const auto recv = [&] { return c.Recv(got.data(), count, dtype, left, Never()); };
    auto status = c.rank() == 0 ? send() : recv();
    ASSERT_TRUE(status.ok()) << status;
    status = c.rank() == 0 ? recv() : send();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(got == expected) << DTypeName(dtype) << " " << count << " rank " << c.rank();
  });
}

TEST_P(DataTest, BuffersInTheArenaAreAsGoodAsOthers) {
  constexpr int64_t kCount = 100'003;
  Cluster cluster(kind(), world(), kCount * 4 * (world() + 2) + 1024);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    auto memory = transport.Allocate(kCount * 4, "data");
    auto parts = transport.Allocate(kCount * 4 * world(), "parts");
    ASSERT_TRUE(memory.ok() && parts.ok());
    auto* data = static_cast<float*>(*memory);
    auto* all = static_cast<float*>(*parts);
    const auto fill = [&] {
      for (int64_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(Value(c.rank(), i));
    };
    fill();
    ASSERT_TRUE(c.AllGather(data, all, kCount, DType::kFloat32, Never()).ok());
    for (int64_t i = 0; i < kCount * world(); ++i) {
      ASSERT_EQ(all[i], Value(static_cast<int>(i / kCount), i % kCount));
    }
    const ReduceOp sum = ReduceOp::kSum;
    ASSERT_TRUE(c.ReduceScatter(all, data, kCount, DType::kFloat32, sum, Never()).ok());
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], world() * Value(c.rank(), i));
    fill();
    ASSERT_TRUE(c.AllReduce(data, kCount, DType::kFloat32, sum, ReduceOrder::kFixed, Never()).ok());
    for (int64_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (int r = 0; r < world(); ++r) expected += static_cast<float>(Value(r, i));
      ASSERT_EQ(data[i], expected);
    }
    fill();
    ASSERT_TRUE(c.Broadcast(data, kCount, DType::kFloat32, 0, Never()).ok());
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], Value(0, i));
    ASSERT_TRUE(c.Barrier(Never()).ok());
  });
}

TEST_P(DataTest, ManySmallCallsInARow) {
  Cluster cluster(kind(), world(), 0);
  cluster.Run(1, 0, [&](Communicator& c, Transport&) {
    for (int64_t k = 0; k < 300; ++k) {
      int64_t value = k * (c.rank() + 1);
      ASSERT_TRUE(
          c.AllReduce(&value, 1, DType::kInt64, ReduceOp::kSum, ReduceOrder::kFixed, Never()).ok());
      ASSERT_EQ(value, k * world() * (world() + 1) / 2);
      if (k % 7 == 0) {
        ASSERT_TRUE(c.Barrier(Never()).ok());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, DataTest,
                         testing::Combine(testing::ValuesIn(kAllKinds),
                                          testing::Values(1, 2, 3, 4, 7, 8)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               std::get<1>(info.param), "_ranks");
                         });

// ---- errors ----

class ErrorTest : public testing::TestWithParam<Kind> {};

TEST_P(ErrorTest, DifferentCallsAreNamedOnEveryRank) {
  Cluster cluster(GetParam(), 3, 0);
  cluster.Run(1, 0, [&](Communicator& c, Transport&) {
    std::vector<float> data(100, 1.0f);
    const int64_t count = c.rank() == 2 ? 99 : 100;
    const auto status = c.AllReduce(data.data(), count, DType::kFloat32, ReduceOp::kSum,
                                    ReduceOrder::kFixed, Never());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 calls all_reduce 1 f32[100] sum fixed, rank 2 calls all_reduce "
                          "1 f32[99] sum fixed"));
    EXPECT_EQ(data, std::vector<float>(100, 1.0f));
    EXPECT_EQ(c.Barrier(Never()), status);  // finished
  });
}

TEST_P(ErrorTest, DifferentOperationsAndStepsAreNamed) {
  Cluster cluster(GetParam(), 2, 0);
  cluster.Run(1, 0, [&](Communicator& c, Transport&) {
    float data = 1;
    const auto status =
        c.rank() == 0 ? c.Barrier(Never()) : c.Broadcast(&data, 1, DType::kFloat32, 0, Never());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 calls barrier 1, rank 1 calls broadcast 1 f32[1] from rank 0"));
  });
}

TEST_P(ErrorTest, AReceiveThatDoesNotMatchNamesBothCalls) {
  Cluster cluster(GetParam(), 2, 0);
  cluster.Run(1, 0, [&](Communicator& c, Transport&) {
    std::vector<float> data(10);
    if (c.rank() == 0) {
      EXPECT_TRUE(c.Send(data.data(), 10, DType::kFloat32, 1, Never()).ok());
      return;
    }
    const auto status = c.Recv(data.data(), 9, DType::kFloat32, 0, Never());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("f32[10]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("f32[9]"));
  });
}

TEST_P(ErrorTest, AbortEndsEveryWait) {
  using Call = std::function<absl::Status(Communicator&)>;
  std::vector<char> data(1 << 20);
  const std::vector<Call> calls = {
      [](Communicator& c) { return c.Barrier(Never()); },
      [&](Communicator& c) { return c.Recv(data.data(), 1, DType::kUInt8, 1, Never()); },
      [](Communicator& c) {
        c.PublishCommitted(1);
        return c.WaitCommitted(1, Never());
      },
  };
  for (const Call& call : calls) {
    Cluster cluster(GetParam(), 2, 0);
    std::atomic<bool> aborted{false};
    cluster.Run(1, 0, [&](Communicator& c, Transport&) {
      if (c.rank() == 1) {  // stays away until the other has been aborted
        while (!aborted) std::this_thread::yield();
        return;
      }
      std::jthread watchdog([&] {
        while (c.DescribeState().find("waiting for rank 1") == std::string::npos &&
               GetParam() != Kind::kFake) {
          std::this_thread::yield();
        }
        c.Abort("generation 1 ended");
      });
      const auto status = call(c);
      EXPECT_EQ(status, absl::AbortedError("generation 1 ended"));
      EXPECT_EQ(EndOf(status), GroupEnd{});
      EXPECT_EQ(c.Barrier(Never()).code(), absl::StatusCode::kAborted);
      aborted = true;
    });
  }
}

TEST_P(ErrorTest, TheDeadlineNamesWhoIsMissingAndWhatItCompleted) {
  for (absl::Duration limit = absl::Milliseconds(500);; limit *= 2) {
    Cluster cluster(GetParam(), 3, 0);
    std::atomic<int> done{0};
    absl::Time came[3];
    absl::Status missed[3], next[3];
    cluster.Run(1, 0, [&](Communicator& c, Transport&) {
      ASSERT_TRUE(c.Barrier(Never()).ok());
      if (c.rank() != 1) {
        came[c.rank()] = absl::Now();
        missed[c.rank()] = c.Barrier(came[c.rank()] + limit);
        next[c.rank()] = c.Barrier(Never());
        ++done;
      }
      while (done < 2) std::this_thread::yield();  // nobody finds another one gone
    });
    // Who was held up until the other's deadline is missed, too: again with more time.
    if (absl::AbsDuration(came[2] - came[0]) > limit / 2) continue;
    for (const int r : {0, 2}) {
      EXPECT_EQ(missed[r].code(), absl::StatusCode::kDeadlineExceeded) << missed[r];
      // The other one's goodbye may say it first.
      EXPECT_EQ(EndOf(missed[r]).cause, EndCause::kPeerMissing);
      EXPECT_EQ(EndOf(missed[r]).rank, 1);
      EXPECT_EQ(EndOf(next[r]).lost_rank(), 1) << "it stays so";
      EXPECT_THAT(std::string(missed[r].message()), HasSubstr("barrier 2"));
      EXPECT_THAT(std::string(missed[r].message()), HasSubstr("rank 1 ("));
      EXPECT_THAT(std::string(missed[r].message()), HasSubstr("last completed barrier 1"));
    }
    return;
  }
}

TEST_P(ErrorTest, ConnectWaitsForAllAndCanBeAborted) {
  Cluster cluster(GetParam(), 2, 0);
  const auto spec = [&](int64_t generation) { return cluster.Spec(generation, 0, 0); };
  const auto late = cluster.transport(0).Connect(spec(1), absl::Now() + absl::Milliseconds(5));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
  std::jthread aborter([&] { cluster.transport(0).AbortConnect(2, "superseded"); });
  const auto aborted = cluster.transport(0).Connect(spec(2), Never());
  EXPECT_EQ(aborted.status(), absl::AbortedError("superseded"));
}

TEST_P(ErrorTest, WhatIsTooMuchIsRefused) {
  Cluster cluster(GetParam(), 1, 4096);
  const auto memory = cluster.transport(0).Allocate(1 << 20, "gradients");
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("gradients"));
}

TEST_P(ErrorTest, CommittedStepsAreSeenAfterAnAbort) {
  Cluster cluster(GetParam(), 2, 0);
  cluster.Run(1, 0, [&](Communicator& c, Transport&) {
    c.PublishCommitted(7 + c.rank());
    ASSERT_TRUE(c.WaitCommitted(7, Never()).ok());
    ASSERT_TRUE(c.Barrier(Never()).ok());
    c.Abort("over");
    EXPECT_THAT(c.CommittedSteps(), testing::ElementsAre(7, 8));
    EXPECT_EQ(c.WaitCommitted(7, Never()).code(), absl::StatusCode::kAborted);
  });
}

TEST_P(ErrorTest, OperationsAreRecorded) {
  Cluster cluster(GetParam(), 2, 0);
  cluster.Run(1, 0, [&](Communicator& c, Transport& transport) {
    ASSERT_TRUE(c.Barrier(Never()).ok());
    const auto record = transport.flight_recorder().Latest();
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->operation.kind, OpKind::kBarrier);
    EXPECT_EQ(record->stage, OpStage::kDone);
    EXPECT_THAT(c.DescribeState(), HasSubstr("barrier 1, completed"));
  });
}

// Rank 1 does not come to the end of the reduction: whoever did its own part knows where the result
// lies, and the slices of those that did theirs are whole.
TEST_P(ErrorTest, TheNewestReduceIsKnownAfterAnAbort) {
  Cluster cluster(GetParam(), 2, 1 << 16);
  cluster.Run(1, 2, [&](Communicator& c, Transport& transport) {
    EXPECT_FALSE(c.NewestReduce().has_value());
    ASSERT_TRUE(c.Barrier(Never()).ok());
    constexpr int64_t kCount = 64;
    auto* data = static_cast<float*>(*transport.Allocate(kCount * 4, "a leaf"));
    for (int64_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(i + 100 * c.rank());
    const NodeBuffer node{{c.rank(), c.rank() + 1}, data};
    const TreeReduceArgs args{absl::MakeConstSpan(&node, 1), kCount, data, 7, 0};
    ASSERT_TRUE(c.TreeReduce(args, Never()).ok());
    c.Abort("over");
    EXPECT_TRUE(c.aborted());
    const auto reduced = c.NewestReduce();
    ASSERT_TRUE(reduced.has_value());
    EXPECT_EQ(reduced->step, 7);
    EXPECT_TRUE(reduced->whole);
    if (c.abilities().results_with_owners) {
      ASSERT_EQ(reduced->slices.size(), 2);
    }
    EXPECT_EQ(reduced->slices.back().end, kCount);
    for (const Slice& slice : reduced->slices) {
      for (int64_t i = slice.begin; i < slice.end; ++i) {
        EXPECT_EQ(slice.data[i - slice.begin], static_cast<float>(2 * i + 100));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ErrorTest, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return Name(info.param); });

TEST(MembersTest, MoreThanShareMemoryDoNotFitAHost) {
  Cluster cluster(Kind::kShm, 1, 0);
  GroupSpec spec = cluster.Spec(1, 0, 0);
  while (spec.members.size() < 513) {
    spec.members.push_back(spec.members.back());
    ++spec.members.back().rank;
  }
  const absl::Status status = cluster.transport(0).Connect(spec, Never()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("513 ranks on one host, and at most 512"));
}

}  // namespace
}  // namespace lockstep
