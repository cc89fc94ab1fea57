// SPDX-License-Identifier: Apache-2.0
// How one generation's communicator of NCCL's becomes the next one's.
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/nccl/nccl_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"
#include "tests/conformance/nccl_ranks.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Way = NcclJoin::Way;

// The abort's reason, on other hosts perhaps by way of a rank that left for it.
void ExpectGone(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 is gone"));
}

// Begins with a part, which the GPU of rank 2 never does; then the generation is aborted while
// nobody waits for it.
void BeginHangAndAbort(Cluster* cluster, int64_t generation) {
  fake_nccl::HangNext(2);
  cluster->Run(generation, 3, [&](Communicator& c, Transport& transport) {
    float* const data = *transport.vectors().Allocate(kCount, "a node");
    const NodeBuffer node{{c.rank(), c.rank() + 1}, data};
    const ElementRange parts[] = {{0, kCount / 2}, {kCount / 2, kCount}};
    TreeReduceArgs args;
    args.nodes = absl::MakeConstSpan(&node, 1);
    args.count = kCount;
    args.step = 1;
    args.parts = parts;
    ASSERT_TRUE(c.reduces_parts());
    const std::jthread watchdog([&c] {
      while (fake_nccl::FaultsPending()) std::this_thread::yield();
      c.Abort("rank 2 is gone");
    });
    absl::Status status = c.BeginPart(args, Never());
    while (!c.aborted()) std::this_thread::yield();
    if (status.ok()) status = c.Barrier(Never());  // not one of NCCL's
    ExpectGone(status);
  });
}

// A reduction of ranks 0 to 2 in which rank 2's GPU never does its part, and which is then aborted.
void HangAndAbort(Cluster* cluster, int64_t generation) {
  fake_nccl::HangNext(2);
  cluster->Run(generation, 3, [&](Communicator& c, Transport& transport) {
    const std::jthread watchdog = AbortWhenMoving(c, "rank 2 is gone");
    std::vector<float> result;
    ExpectGone(Reduce(c, transport, 3, &result));
    EXPECT_FALSE(c.NewestReduce().has_value());
  });
}

// Above the memory of one host, and between two.
class NcclGenerations : public testing::TestWithParam<Kind> {};

TEST_P(NcclGenerations, SurvivorsOfAnAbortShrinkTheirCommunicator) {
  Cluster cluster(GetParam(), 3, 1 << 16);
  HangAndAbort(&cluster, 1);
  const fake_nccl::Counts before = fake_nccl::GetCounts();
  cluster.RunWith({0, 1}, 2, 3, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kShrink);
    ExpectReduces(c, transport, 3);
  });
  EXPECT_EQ(fake_nccl::GetCounts().inits, before.inits);
  EXPECT_EQ(fake_nccl::GetCounts().shrinks, before.shrinks + 2);
  // A joiner's rank was another's before, so all begin anew.
  cluster.RunWith({0, 2, 1}, 3, 3, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kNew);
    ExpectReduces(c, transport, 3);
  });
}

TEST_P(NcclGenerations, PartsInFlightEndWithTheirGeneration) {
  Cluster cluster(GetParam(), 3, 1 << 16);
  BeginHangAndAbort(&cluster, 1);
  const fake_nccl::Counts before = fake_nccl::GetCounts();
  cluster.RunWith({0, 1}, 2, 3, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kShrink);
    ExpectReduces(c, transport, 3);
  });
  EXPECT_EQ(fake_nccl::GetCounts().inits, before.inits);
}

TEST_P(NcclGenerations, JoinersAreGrownInto) {
  Cluster cluster(GetParam(), 4, 1 << 16);
  cluster.RunWith({0, 1}, 1, 4, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kNew);
    ExpectReduces(c, transport, 4);
  });
  cluster.RunWith({0, 1, 2, 3}, 2, 4, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kGrow);
    ExpectReduces(c, transport, 4);
  });
}

TEST_P(NcclGenerations, AShrinkThatFailsOnOneRankMakesANewCommunicatorOnAll) {
  Cluster cluster(GetParam(), 3, 1 << 16, nullptr, /*try_held_for=*/absl::Milliseconds(300));
  HangAndAbort(&cluster, 1);
  fake_nccl::RefuseNextManagement(1);
  cluster.RunWith({0, 1}, 2, 3, [&](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kNew);
    ExpectReduces(c, transport, 3);
  });
}

TEST_P(NcclGenerations, OneRankIsAloneWithoutAnyCommunicator) {
  Cluster cluster(GetParam(), 2, 1 << 16);
  const fake_nccl::Counts before = fake_nccl::GetCounts();
  cluster.RunWith({1}, 1, 3,
                  [](Communicator& c, Transport& transport) { ExpectReduces(c, transport, 3); });
  EXPECT_EQ(fake_nccl::GetCounts().inits, before.inits);
}

// Communicators that are busy from some call on, each until it is aborted.
class BusyCommunicators {
 public:
  static BusyCommunicators& Get() {
    static auto* const busy = new BusyCommunicators();
    return *busy;
  }
  // The fake's library, which knows of them.
  NcclLibrary Library() {
    {
      absl::MutexLock lock(&mu_);
      begun_ = 0;
    }
    NcclLibrary library = fake_nccl::Library();
    library.api.async_error = [](NcclComm comm, NcclResult* state) {
      if (!Get().Has(comm)) return fake_nccl::Library().api.async_error(comm, state);
      *state = kNcclInProgress;
      return kNcclSuccess;
    };
    library.api.abort = [](NcclComm comm) {
      Get().End(comm);
      return fake_nccl::Library().api.abort(comm);
    };
    return library;
  }
  NcclResult Begin(NcclComm comm) {
    absl::MutexLock lock(&mu_);
    ++begun_;
    comms_.insert(comm);
    return kNcclInProgress;
  }
  // Calls that have begun since Library().
  int begun() const {
    absl::MutexLock lock(&mu_);
    return begun_;
  }

 private:
  bool Has(NcclComm comm) const {
    absl::MutexLock lock(&mu_);
    return comms_.count(comm) > 0;
  }
  void End(NcclComm comm) {
    absl::MutexLock lock(&mu_);
    comms_.erase(comm);
  }
  mutable absl::Mutex mu_;
  std::set<NcclComm> comms_ ABSL_GUARDED_BY(mu_);
  int begun_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_P(NcclGenerations, AnIdForJoinersThatDoesNotComeMakesANewCommunicatorOnAll) {
  NcclLibrary library = BusyCommunicators::Get().Library();
  library.api.grow_id = [](NcclComm comm, NcclUniqueId*) {
    return BusyCommunicators::Get().Begin(comm);
  };
  Cluster cluster(GetParam(), 3, 1 << 16, nullptr, /*try_held_for=*/absl::Milliseconds(100),
                  &library);
  cluster.RunWith({0, 1}, 1, 3,
                  [](Communicator& c, Transport& transport) { ExpectReduces(c, transport, 3); });
  cluster.RunWith({0, 1, 2}, 2, 3, [](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kNew);
    ExpectReduces(c, transport, 3);
  });
  EXPECT_EQ(BusyCommunicators::Get().begun(), 1);
}

// The generation that shrinks is over before it has shrunk.
TEST_P(NcclGenerations, ACommunicatorWhoseShrinkWasGivenUpIsNotShrunkAgain) {
  NcclLibrary library = BusyCommunicators::Get().Library();
  library.api.shrink = [](NcclComm comm, int*, int, NcclComm*, NcclConfig*, int) {
    return BusyCommunicators::Get().Begin(comm);
  };
  Cluster cluster(GetParam(), 3, 1 << 16, nullptr, /*try_held_for=*/absl::Seconds(10), &library);
  HangAndAbort(&cluster, 1);
  std::jthread aborter([&] {
    while (BusyCommunicators::Get().begun() < 2) std::this_thread::yield();
    for (const int r : {0, 1}) cluster.transport(r).AbortConnect(2, "rank 1 is gone");
  });
  for (const absl::Status& status :
       cluster.TryWith({0, 1}, 2, 3, [](Communicator&, Transport&) { FAIL(); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  }
  aborter.join();
  cluster.RunWith({0, 1}, 3, 3, [](Communicator& c, Transport& transport) {
    EXPECT_EQ(Nccl(transport).last_way(), Way::kNew);
    ExpectReduces(c, transport, 3);
  });
  EXPECT_EQ(BusyCommunicators::Get().begun(), 2);
}

INSTANTIATE_TEST_SUITE_P(All, NcclGenerations, testing::Values(Kind::kNccl, Kind::kNcclTurns),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
