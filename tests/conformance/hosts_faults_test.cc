// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts as real processes: a killed or stopped one is named by all others, on its
// own host and elsewhere.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "collectives/flight_recorder.h"
#include "collectives/group_end.h"
#include "collectives/hosts/hosts_transport.h"
#include "collectives/operation.h"
#include "collectives/shm/shm_transport.h"
#include "common/check.h"
#include "common/fd_passing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/processes.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::vector<std::vector<std::string>> kDeals = {
    {"a", "a", "b", "b"}, {"a", "b", "a", "b"}, {"a", "b", "b", "b"}, {"a", "b", "c", "d"}};

// Every rank works in a loop of calls; in the middle of them rank 1 is killed.
void KillInTheMiddle(const std::vector<std::string>& nodes,
                     const std::function<absl::Status(Communicator&)>& call) {
  constexpr int kWorld = 4;
  Processes job(
      kWorld, kWorld,
      [&](Communicator& c, Transport&, int socket) {
        LS_CHECK(SendFds(socket, "begun", {}).ok());
        absl::Status status;
        while (status.ok()) status = call(c);
        const std::string result =
            absl::StrCat(std::string(status.message()), "|", EndOf(status).lost_rank());
        LS_CHECK(SendFds(socket, result, {}).ok());
        ::pause();  // the others must not find this one gone
        return result;
      },
      nodes);
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "begun");
  job.Kill(1);
  for (const int r : {0, 2, 3}) {
    const std::vector<std::string> parts = absl::StrSplit(job.Receive(r), '|');
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_THAT(parts[0], HasSubstr("rank 1")) << "rank " << r;
    EXPECT_THAT(parts[0], HasSubstr("died")) << "rank " << r;
    EXPECT_EQ(parts[1], "1") << "rank " << r << ": " << parts[0];
  }
}

TEST(HostsFaultsTest, AKilledRankIsNamedInSmallCalls) {
  for (const auto& nodes : kDeals) {
    KillInTheMiddle(nodes, [](Communicator& c) {
      int value = 1;
      return c.AllReduce(&value, 1, DType::kInt32, ReduceOp::kSum, ReduceOrder::kFixed,
                         MuchLater());
    });
  }
}

TEST(HostsFaultsTest, AKilledRankIsNamedInLargeCalls) {
  std::vector<float> data(1 << 20);
  for (const auto& nodes : kDeals) {
    KillInTheMiddle(nodes, [&](Communicator& c) {
      return c.AllReduce(data.data(), 1 << 20, DType::kFloat32, ReduceOp::kMax, ReduceOrder::kFixed,
                         MuchLater());
    });
  }
}

// Rank 1 dies when parts of a reduction are on their way and everybody computes.
TEST(HostsFaultsTest, AKilledRankIsNamedAmidPartsThatWereBegun) {
  constexpr int64_t kCount = 200'000;
  const std::vector<ElementRange> parts = {{0, 64'000}, {64'000, 128'000}, {128'000, 192'000}};
  for (const auto& nodes : kDeals) {
    Processes job(
        4, 4,
        [&](Communicator& c, Transport& transport, int socket) {
          const NodeBuffer node{{c.rank(), c.rank() + 1},
                                *transport.vectors().Allocate(kCount, "a node")};
          TreeReduceArgs args;
          args.nodes = absl::MakeConstSpan(&node, 1);
          args.count = kCount;
          args.result = const_cast<float*>(node.data);
          args.parts = parts;
          LS_CHECK(SendFds(socket, "begun", {}).ok());
          absl::Status status;
          while (status.ok()) {
            ++args.step;
            for (size_t part = 0; part < parts.size() && status.ok(); ++part) {
              status = c.BeginPart(args, MuchLater());
            }
            if (status.ok()) status = c.TreeReduce(args, MuchLater()).status();
          }
          const std::string result =
              absl::StrCat(std::string(status.message()), "|", EndOf(status).lost_rank());
          LS_CHECK(SendFds(socket, result, {}).ok());
          ::pause();
          return result;
        },
        nodes);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(job.Receive(r), "begun");
    job.Kill(1);
    for (const int r : {0, 2, 3}) {
      const std::string message = job.Receive(r);
      EXPECT_THAT(message, HasSubstr("rank 1")) << "rank " << r;
      EXPECT_THAT(message, HasSubstr("died")) << "rank " << r;
      EXPECT_THAT(message, HasSubstr("|1")) << "rank " << r;
    }
  }
}

// Rank 2 dies while the other rank of its host sends what it holds, from where it lies, to a host
// that reads nothing: half a frame is gone. Every second frame is of its memory, so again and
// again.
TEST(HostsFaultsTest, TheMemoryOfADeadRankIsGivenUpAmidAFrameOfIt) {
  constexpr int64_t kCount = 6 << 20;
  const std::vector<ElementRange> parts = {{0, kCount / 2}, {kCount / 2, kCount}};
  for (int round = 0; round < 8; ++round) {
    Processes job(
        3, 3,
        [&](Communicator& c, Transport& transport, int socket) -> std::string {
          const NodeBuffer node{{c.rank(), c.rank() + 1},
                                *transport.vectors().Allocate(kCount, "a node")};
          TreeReduceArgs args;
          args.nodes = absl::MakeConstSpan(&node, 1);
          args.count = kCount;
          args.result = const_cast<float*>(node.data);
          args.parts = parts;
          for (size_t part = 0; c.rank() != 1 && part < parts.size(); ++part) {
            LS_CHECK(c.BeginPart(args, MuchLater()).ok());
          }
          LS_CHECK(SendFds(socket, "begun", {}).ok());
          if (c.rank() != 0) ::pause();
          LS_CHECK(RecvFds(socket).ok());
          c.Abort("it is over");
          c.ReleaseDead();
          return "released";
        },
        {"a", "b", "a"}, kCount * sizeof(float) + (1 << 20));
    for (int r = 0; r < 3; ++r) ASSERT_EQ(job.Receive(r), "begun");
    job.WaitForDeath(1, absl::Milliseconds(50));  // nobody dies: time to fill the connection
    job.Kill(2);
    ASSERT_TRUE(job.WaitForDeath(2, absl::Seconds(60)));
    job.Send(0, "go on");
    EXPECT_EQ(job.Receive(0), "released") << "round " << round;
    job.Kill(1);
    ASSERT_TRUE(job.EndsWell(0)) << "round " << round;
  }
}

// Rank 0 fails by itself while it sends sums, which lie in its own communicator's memory, to a host
// that reads nothing. What was begun goes whole, and then why it has left, if it says so.
TEST(HostsFaultsTest, WhoLeavesAmidAFrameEndsItAndSaysWhy) {
  constexpr int64_t kCount = 6 << 20;
  const std::vector<ElementRange> parts = {{0, kCount / 2}, {kCount / 2, kCount}};
  for (const std::string why : {"", "its disk is full"}) {
    Processes job(
        3, 3,
        [&](Communicator& c, Transport& transport, int socket) -> std::string {
          const NodeBuffer node{{c.rank(), c.rank() + 1},
                                *transport.vectors().Allocate(kCount, "a node")};
          TreeReduceArgs args;
          args.nodes = absl::MakeConstSpan(&node, 1);
          args.count = kCount;
          args.result = const_cast<float*>(node.data);
          args.parts = parts;
          for (size_t part = 0; c.rank() != 2 && part < parts.size(); ++part) {
            LS_CHECK(c.BeginPart(args, MuchLater()).ok());
          }
          LS_CHECK(SendFds(socket, "begun", {}).ok());
          if (c.rank() == 1) ::pause();
          LS_CHECK(RecvFds(socket).ok());
          if (c.rank() == 2) {
            absl::Status status = c.BeginPart(args, MuchLater());
            if (status.ok()) status = c.BeginPart(args, MuchLater());
            if (status.ok()) status = c.TreeReduce(args, MuchLater()).status();
            return std::string(status.message());
          }
          if (!why.empty()) c.Abort(why);
          return "leaves";
        },
        {"a", "a", "b"}, kCount * sizeof(float) + (1 << 20));
    for (int r = 0; r < 3; ++r) ASSERT_EQ(job.Receive(r), "begun");
    job.WaitForDeath(1, absl::Milliseconds(50));  // nobody dies: time to fill the connection
    job.Send(0, "go on");
    EXPECT_EQ(job.Receive(0), "leaves");
    job.Send(2, "go on");
    EXPECT_EQ(job.Receive(2),
              absl::StrCat("rank 0 (host a) has left generation 1", why.empty() ? "" : ": ", why));
    EXPECT_TRUE(job.EndsWell(0));
  }
}

// Rank 1 never comes: the others wait, then tell when they heard of its death. How long that took
// the last one, in nanoseconds.
int64_t HearOfADeath(const std::vector<std::string>& nodes) {
  constexpr int kWorld = 4;
  Processes job(
      kWorld, kWorld,
      [&](Communicator& c, Transport&, int socket) {
        LS_CHECK(SendFds(socket, "begun", {}).ok());
        if (c.rank() == 1) ::pause();
        const auto status = c.Barrier(MuchLater());
        const std::string result =
            absl::StrCat(std::string(status.message()), "|", absl::GetCurrentTimeNanos());
        LS_CHECK(SendFds(socket, result, {}).ok());
        ::pause();
        return result;
      },
      nodes);
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "begun");
  job.WaitForDeath(1, absl::Milliseconds(10));  // nobody dies: time to begin to wait
  const int64_t killed = absl::GetCurrentTimeNanos();
  job.Kill(1);
  int64_t slowest = 0;
  for (const int r : {0, 2, 3}) {
    const std::vector<std::string> parts = absl::StrSplit(job.Receive(r), '|');
    EXPECT_EQ(parts.size(), 2u);
    EXPECT_THAT(parts[0], HasSubstr("rank 1"));
    EXPECT_THAT(parts[0], HasSubstr("died"));
    int64_t seen = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts.back(), &seen));
    std::printf("rank %d (host %s) heard of the death after %.0f us\n", r,
                nodes[static_cast<size_t>(r)].c_str(), static_cast<double>(seen - killed) / 1000);
    slowest = std::max(slowest, seen - killed);
  }
  return slowest;
}

TEST(HostsFaultsTest, WhoWaitsHearsOfADeathAtOnce) {
  constexpr int64_t kFarAboveWhatItTakes = 2'000'000'000;
  for (const auto& nodes : kDeals) {
    int64_t slowest = HearOfADeath(nodes);
    // Again where the machine was busy with others.
    for (int more = 0; more < 4 && slowest >= kFarAboveWhatItTakes; ++more) {
      slowest = HearOfADeath(nodes);
    }
    EXPECT_LT(slowest, kFarAboveWhatItTakes);
  }
}

// What ranks 0, 1 and 3 say when rank 2 does not come within `limit`; nothing when one of them was
// held up for most of it, and may be missed by the others, too.
std::vector<std::string> MissRankTwo(const std::vector<std::string>& nodes, absl::Duration limit) {
  constexpr int kWorld = 4;
  Processes job(
      kWorld, kWorld,
      [&](Communicator& c, Transport&, int socket) -> std::string {
        const auto first = c.Barrier(MuchLater());
        if (!first.ok()) return first.ToString();
        LS_CHECK(SendFds(socket, "begun", {}).ok());
        if (c.rank() == 2) ::pause();
        const absl::Time came = absl::Now();
        const auto status = c.Barrier(came + limit);
        const std::string message = absl::StrCat(status.ToString(), "|", EndOf(status).lost_rank());
        LS_CHECK(SendFds(socket, absl::StrCat(absl::ToUnixNanos(came)), {}).ok());
        LS_CHECK(SendFds(socket, message, {}).ok());
        ::pause();
        return message;
      },
      nodes);
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "begun");
  std::vector<int64_t> came;
  std::vector<std::string> messages;
  for (const int r : {0, 1, 3}) {
    EXPECT_TRUE(absl::SimpleAtoi(job.Receive(r), &came.emplace_back()));
    messages.push_back(job.Receive(r));
  }
  const auto [soonest, latest] = std::minmax_element(came.begin(), came.end());
  if (absl::Nanoseconds(*latest - *soonest) > limit / 2) messages.clear();
  return messages;
}

TEST(HostsFaultsTest, AStoppedRankIsNamedByTheDeadline) {
  for (const auto& nodes : kDeals) {
    std::vector<std::string> messages;
    for (absl::Duration limit = absl::Milliseconds(500); messages.empty(); limit *= 2) {
      messages = MissRankTwo(nodes, limit);
    }
    for (const std::string& message : messages) {
      EXPECT_THAT(message, HasSubstr("DEADLINE_EXCEEDED"));
      EXPECT_THAT(message, HasSubstr("rank 2 ("));
      EXPECT_THAT(message, HasSubstr("last completed barrier 1"));
      EXPECT_THAT(message, HasSubstr("|2"));
    }
  }
}

// Rank 1, of the same host, has come, and does not say where its memory is before all is over.
TEST(HostsFaultsTest, WhoWaitsForItsNeighboursMemoryHearsOfTheEnd) {
  HostsTransport::Options options;
  options.shm.arena_bytes = 1 << 16;
  options.listen = {"127.0.0.1"};
  const auto own = *HostsTransport::Create(options);
  const auto neighbour = *ShmTransport::Create(options.shm);
  GroupSpec group;
  group.generation = 5;
  group.job = "job";
  group.secret = "secret";
  for (int rank = 0; rank < 3; ++rank) {
    GroupMember& member = group.members.emplace_back();
    member.rank = rank;
    member.host = member.node = rank < 2 ? "a" : "b";
    member.shards = {rank, rank + 1};
    member.shm_address = rank == 0 ? own->address() : neighbour->address();
    member.key = rank == 0 ? own->key() : neighbour->key();
    member.tcp_addresses = {absl::StrCat("127.0.0.1:", own->tcp_port())};
  }
  GroupSpec near = group;
  near.members.pop_back();
  near.rank = 1;
  group.rank = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::Status ended;
  std::thread connects([&] { ended = own->Connect(group, deadline).status(); });
  const auto there = neighbour->Connect(near, deadline);
  EXPECT_TRUE(there.ok()) << there.status();
  // Until it waits in that call.
  const auto shares = [&] {
    const auto latest = own->flight_recorder().Latest();
    return latest.has_value() && latest->operation.kind == OpKind::kShare;
  };
  while (!shares() && absl::Now() < deadline) std::this_thread::yield();
  own->AbortConnect(5, "rank 2 died");
  connects.join();
  EXPECT_EQ(ended, absl::AbortedError("rank 2 died"));
  EXPECT_LT(absl::Now(), deadline);
}

TEST(HostsFaultsTest, WhoIsDoneMayLeave) {
  for (const auto& nodes : kDeals) {
    Processes job(
        4, 4, [&](Communicator& c, Transport&, int) { return c.Barrier(MuchLater()).ToString(); },
        nodes);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(job.Receive(r), "OK");
  }
}

}  // namespace
}  // namespace lockstep
