// SPDX-License-Identifier: Apache-2.0
// The shared-memory data plane between real processes: the same bits, and a killed rank is named by
// its survivors at once.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "collectives/group_end.h"
#include "collectives/shm/shm_transport.h"
#include "common/check.h"
#include "common/fd_passing.h"
#include "common/life.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/processes.h"

namespace lockstep {
namespace {

absl::Time Never() { return MuchLater(); }

TEST(ShmProcessesTest, TreeReduceGivesEveryProcessTheSameBits) {
  constexpr int kShards = 6;
  constexpr int64_t kCount = 1000;
  const auto leaf = [](int shard, int64_t i) {
    return 1.0f / static_cast<float>(shard * 7 + i + 1);
  };
  for (const int world : {1, 3, 4}) {
    Processes job(world, kShards, [&](Communicator& c, Transport& transport, int) {
      std::vector<NodeBuffer> nodes;
      for (const auto node : WholeNodes(kShards, DealShards(kShards, world, c.rank()))) {
        auto* data = static_cast<float*>(transport.Allocate(kCount * 4, "node").value());
        const std::function<float(ShardRange, int64_t)> sum = [&](ShardRange range, int64_t i) {
          if (range.size() == 1) return leaf(range.begin, i);
          const int middle = TreeSplit(range);
          return sum({range.begin, middle}, i) + sum({middle, range.end}, i);
        };
        for (int64_t i = 0; i < kCount; ++i) data[i] = sum(node, i);
        nodes.push_back({node, data});
      }
      TreeReduceArgs args;
      args.nodes = nodes;
      args.count = kCount;
      args.result = const_cast<float*>(nodes[0].data);
      const auto slices = c.TreeReduce(args, Never());
      if (!slices.ok()) return slices.status().ToString();
      std::string bits;
      for (const Slice& slice : *slices) {
        bits.append(reinterpret_cast<const char*>(slice.data), (slice.end - slice.begin) * 4);
      }
      const auto status = c.Barrier(Never());  // nobody leaves while others read
      return status.ok() ? bits : status.ToString();
    });
    std::string expected(kCount * 4, '\0');
    for (int64_t i = 0; i < kCount; ++i) {
      const float value =
          ((leaf(0, i) + leaf(1, i)) + (leaf(2, i) + leaf(3, i))) + (leaf(4, i) + leaf(5, i));
      std::memcpy(&expected[i * 4], &value, 4);
    }
    for (int r = 0; r < world; ++r) EXPECT_TRUE(job.Receive(r) == expected) << "rank " << r;
  }
}

// Every rank works in a loop of calls; in the middle of them rank 1 is killed.
void KillInTheMiddle(const std::function<absl::Status(Communicator&)>& call) {
  constexpr int kWorld = 4;
  Processes job(kWorld, kWorld, [&](Communicator& c, Transport&, int socket) {
    LS_CHECK(SendFds(socket, "begun", {}).ok());
    absl::Status status;
    while (status.ok()) status = call(c);
    LS_CHECK(EndOf(status).cause == EndCause::kPeerDied);
    return absl::StrCat(std::string(status.message()), "|", EndOf(status).lost_rank(), "|",
                        c.CommittedSteps().size());
  });
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "begun");
  job.Kill(1);
  EXPECT_TRUE(job.WaitForDeath(1, absl::Seconds(20)));
  for (const int r : {0, 2, 3}) {
    EXPECT_THAT(job.Receive(r), testing::MatchesRegex("rank 1 died \\(pid [0-9]+\\)\\|1\\|4"));
  }
}

TEST(ShmProcessesTest, AKilledRankIsNamedInSmallCalls) {
  KillInTheMiddle([](Communicator& c) {
    int value = 1;
    return c.AllReduce(&value, 1, DType::kInt32, ReduceOp::kSum, ReduceOrder::kFixed, Never());
  });
}

TEST(ShmProcessesTest, AKilledRankIsNamedInLargeCalls) {
  std::vector<float> data(1 << 20);
  KillInTheMiddle([&](Communicator& c) {
    return c.AllReduce(data.data(), 1 << 20, DType::kFloat32, ReduceOp::kMax, ReduceOrder::kFixed,
                       Never());
  });
}

// Rank 1 never comes: the others sleep by the time it is killed, then tell when they woke. How long
// that took the later one, in nanoseconds.
int64_t WakeByADeath() {
  constexpr int kWorld = 3;
  int64_t slowest = 0;
  Processes job(kWorld, kWorld, [&](Communicator& c, Transport&, int socket) -> std::string {
    LS_CHECK(SendFds(socket, "begun", {}).ok());
    if (c.rank() == 1) ::pause();
    const auto status = c.Barrier(Never());
    return absl::StrCat(status.message(), "|", absl::GetCurrentTimeNanos());
  });
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "begun");
  job.WaitForDeath(1, absl::Milliseconds(10));  // nobody dies: time for the others to sleep
  const int64_t killed = absl::GetCurrentTimeNanos();
  job.Kill(1);
  for (const int r : {0, 2}) {
    const std::vector<std::string> parts = absl::StrSplit(job.Receive(r), '|');
    EXPECT_EQ(parts.size(), 2u);
    EXPECT_THAT(parts[0], testing::HasSubstr("rank 1 died"));
    int64_t seen = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts.back(), &seen));
    std::printf("rank %d saw the death after %.0f us\n", r,
                static_cast<double>(seen - killed) / 1000);
    slowest = std::max(slowest, seen - killed);
  }
  return slowest;
}

TEST(ShmProcessesTest, SleepingSurvivorsAreWokenByADeath) {
  constexpr int64_t kFarAboveWhatItTakes = 1'000'000'000;
  int64_t slowest = WakeByADeath();
  // Again where the machine was busy with others.
  for (int more = 0; more < 4 && slowest >= kFarAboveWhatItTakes; ++more) slowest = WakeByADeath();
  EXPECT_LT(slowest, kFarAboveWhatItTakes);
}

// What ranks 0 and 1 say when rank 2 does not come within `limit`; nothing when one of them was
// held up for most of it, and may be missed by the other, too.
std::vector<std::string> MissRankTwo(absl::Duration limit) {
  constexpr int kWorld = 3;
  Processes job(kWorld, kWorld, [&](Communicator& c, Transport&, int socket) -> std::string {
    const auto first = c.Barrier(Never());
    if (!first.ok()) return first.ToString();
    LS_CHECK(SendFds(socket, "begun", {}).ok());
    if (c.rank() == 2) ::pause();
    // Stays after its deadline: the other's deadline may come later, and must not find this one
    // dead.
    const absl::Time came = absl::Now();
    const std::string message = c.Barrier(came + limit).ToString();
    LS_CHECK(SendFds(socket, absl::StrCat(absl::ToUnixNanos(came)), {}).ok());
    LS_CHECK(SendFds(socket, message, {}).ok());
    ::pause();
    return message;
  });
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "begun");
  job.Stop(2);
  int64_t came[2] = {};
  std::vector<std::string> messages;
  for (const int r : {0, 1}) {
    EXPECT_TRUE(absl::SimpleAtoi(job.Receive(r), &came[r]));
    messages.push_back(job.Receive(r));
  }
  if (absl::AbsDuration(absl::Nanoseconds(came[1] - came[0])) > limit / 2) messages.clear();
  return messages;
}

TEST(ShmProcessesTest, AStoppedRankIsNamedByTheDeadline) {
  std::vector<std::string> messages;
  for (absl::Duration limit = absl::Milliseconds(100); messages.empty(); limit *= 2) {
    messages = MissRankTwo(limit);
  }
  for (const std::string& message : messages) {
    EXPECT_THAT(message, testing::HasSubstr("DEADLINE_EXCEEDED"));
    EXPECT_THAT(message, testing::HasSubstr("rank 2 (pid"));
    EXPECT_THAT(message, testing::HasSubstr("last completed barrier 1"));
  }
}

// How many arenas this process has mapped from a file, so that their memory cannot go.
int MappedArenas() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:lockstep-arena") != std::string::npos ? 1 : 0;
  }
  return count;
}

// Rank 1 is killed after its part of the reduction of step 5, which the others have committed or,
// if they are `behind`, may have to finish.
void ReleaseAfterDeath(bool behind) {
  constexpr int kWorld = 3;
  constexpr int64_t kCount = 100'000;
  Processes job(kWorld, kWorld, [&](Communicator& c, Transport& transport, int socket) {
    auto* data = static_cast<float*>(transport.Allocate(kCount * 4, "a leaf").value());
    for (int64_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(i + 10 * c.rank());
    const NodeBuffer node{{c.rank(), c.rank() + 1}, data};
    TreeReduceArgs args{absl::MakeConstSpan(&node, 1), kCount, data, 5, 0};
    c.PublishCommitted(4);
    LS_CHECK(c.TreeReduce(args, Never()).ok());
    if (!behind) c.PublishCommitted(5);
    LS_CHECK(SendFds(socket, "reduced", {}).ok());
    if (c.rank() == 1) ::pause();
    LS_CHECK(EndOf(c.Barrier(Never())).lost_rank() == 1);
    const int before = MappedArenas();
    c.ReleaseDead();
    c.ReleaseDead();
    const auto reduced = c.NewestReduce();
    LS_CHECK(reduced.has_value() && reduced->whole);
    int wrong = 0;
    for (const Slice& slice : reduced->slices) {
      if (!behind && &slice == &reduced->slices[1]) continue;  // its owner's, and not needed
      for (int64_t i = slice.begin; i < slice.end; ++i) {
        wrong += slice.data[i - slice.begin] == static_cast<float>(3 * i + 30) ? 0 : 1;
      }
    }
    const std::string result =
        absl::StrCat(before, " to ", MappedArenas(), " arenas, ", wrong, " wrong");
    LS_CHECK(SendFds(socket, result, {}).ok());
    ::pause();  // the other survivor must not find this one dead
    return result;
  });
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job.Receive(r), "reduced");
  job.Kill(1);
  for (const int r : {0, 2}) EXPECT_EQ(job.Receive(r), "3 to 2 arenas, 0 wrong");
}

TEST(ShmProcessesTest, SurvivorsGiveTheMemoryOfTheDeadBack) { ReleaseAfterDeath(false); }

TEST(ShmProcessesTest, WhoIsBehindKeepsNoMoreOfTheDeadThanTheirSlices) { ReleaseAfterDeath(true); }

// Of two threads rank 1 does its part of the reduction of step 7, and dies as it waits for rank 0
// in the next generation; rank 0 is behind, and may have to finish that step.
void DieInTheNextGeneration() {
  constexpr int64_t kCount = 4096;
  const auto page = LifePage::Create(8).value();
  const int slots[2] = {page->Issue().value(), page->Issue().value()};
  LS_CHECK(page->Take(slots[0]).ok());
  ShmTransport::Options options;
  options.arena_bytes = 1 << 20;
  options.life = page.get();
  const std::unique_ptr<ShmTransport> transports[2] = {ShmTransport::Create(options).value(),
                                                       ShmTransport::Create(options).value()};
  GroupSpec group;
  group.generation = 1;
  group.job = "job";
  for (int r = 0; r < 2; ++r) {
    GroupMember member;
    member.rank = r;
    member.pid = ::getpid();
    member.shm_address = transports[r]->address();
    member.key = transports[r]->key();
    member.life_slot = slots[r];
    member.shards = {r, r + 1};
    group.members.push_back(member);
  }
  // A rank's communicator of generation 1, by which it has reduced step 7.
  const auto reduce = [&](int rank) {
    auto* const data = static_cast<float*>(transports[rank]->Allocate(kCount * 4, "leaf").value());
    std::fill_n(data, kCount, static_cast<float>(rank + 1));
    GroupSpec own = group;
    own.rank = rank;
    std::unique_ptr<Communicator> c = transports[rank]->Connect(own, Never()).value();
    const NodeBuffer node{{rank, rank + 1}, data};
    const auto reduced =
        c->TreeReduce({absl::MakeConstSpan(&node, 1), kCount, data, 7, 0}, Never());
    LS_CHECK(reduced.ok() || rank == 0);  // rank 0 may hear of the death in the midst of it
    return c;
  };
  std::thread dying([&] {
    const auto own_page = LifePage::Open(UniqueFd(::dup(page->fd()))).value();
    LS_CHECK(own_page->Take(slots[1]).ok());
    std::unique_ptr<Communicator> c = reduce(1);
    c->PublishCommitted(7);
    c->Abort("the generation is over");
    c.reset();
    GroupSpec next = group;
    next.rank = 1;
    next.generation = 2;
    EXPECT_FALSE(transports[1]->Connect(next, absl::Now() + absl::Milliseconds(50)).ok());
  });
  const std::unique_ptr<Communicator> c = reduce(0);
  dying.join();
  ASSERT_EQ(page->Get(slots[1]), LifePage::State::kDead);
  c->Abort("the generation is over");
  c->ReleaseDead();
  const auto reduced = c->NewestReduce();
  ASSERT_TRUE(reduced.has_value());
  for (const Slice& slice : reduced->slices) {
    EXPECT_EQ(std::count(slice.data, slice.data + (slice.end - slice.begin), 3.0f),
              slice.end - slice.begin);
  }
}

TEST(ShmProcessesTest, WhoIsBehindKeepsTheSliceOfOneThatDiesInTheNextGeneration) {
  std::thread(DieInTheNextGeneration).join();  // a thread is on one page of lives, for ever
}

TEST(ShmProcessesTest, WhoIsDoneMayLeave) {
  // A rank that ends after the last call is no reason for the others to fail in it.
  for (int i = 0; i < 10; ++i) {
    Processes job(3, 3,
                  [&](Communicator& c, Transport&, int) { return c.Barrier(Never()).ToString(); });
    for (int r = 0; r < 3; ++r) EXPECT_EQ(job.Receive(r), "OK");
  }
}

}  // namespace
}  // namespace lockstep
