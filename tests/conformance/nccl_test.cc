// SPDX-License-Identifier: Apache-2.0
// What NCCL's communicators do beside the common suite: faults, and transports with other options.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/nccl/nccl_transport.h"
#include "collectives/shm/shm_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"
#include "tests/conformance/nccl_ranks.h"
#include "tests/emulation/fake_gpu_queue.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Way = NcclJoin::Way;

TEST(Nccl, AnErrorOfTheNetworkEndsTheGenerationAndOneOfOursTheJob) {
  for (const auto& [error, code] : {std::pair{kNcclRemoteError, absl::StatusCode::kAborted},
                                    std::pair{kNcclInternalError, absl::StatusCode::kInternal}}) {
    Cluster cluster(Kind::kNccl, 2, 1 << 16);
    fake_nccl::FailNext(0, error);
    cluster.Run(1, 2, [&, code = code](Communicator& c, Transport& transport) {
      std::vector<float> result;
      std::jthread watchdog;
      if (c.rank() == 1) watchdog = AbortWhenMoving(c, "rank 0 said so");
      const absl::Status status = Reduce(c, transport, 2, &result);
      if (c.rank() == 1) return;
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("tree_reduce 1 f32[4096]"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("asked for by a test"));
      EXPECT_EQ(c.Barrier(Never()), status);  // finished
    });
  }
}

TEST(Nccl, WorkThatEndsInAnErrorIsNotDone) {
  Cluster cluster(Kind::kNccl, 2, 1 << 16);
  fake_nccl::FailNext(0, kNcclRemoteError, /*ends=*/true);
  cluster.Run(1, 0, [](Communicator& c, Transport&) {
    std::jthread watchdog;
    if (c.rank() == 1) watchdog = AbortWhenMoving(c, "rank 0 said so");
    std::vector<float> data(100, 1.0f);
    const absl::Status status = c.AllReduce(data.data(), 100, DType::kFloat32, ReduceOp::kSum,
                                            ReduceOrder::kFastest, Never());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    if (c.rank() == 1) return;
    EXPECT_THAT(std::string(status.message()), HasSubstr("asked for by a test"));
  });
}

TEST(Nccl, ADeadlinePassesInTheMiddleOfAReduction) {
  fake_nccl::HangNext(1);
  // Again with more time when it has passed before rank 1's GPU had anything to do.
  for (absl::Duration limit = absl::Milliseconds(50); fake_nccl::FaultsPending(); limit *= 2) {
    Cluster cluster(Kind::kNccl, 2, 1 << 16);
    cluster.Run(1, 0, [&](Communicator& c, Transport&) {
      std::vector<float> data(100, 1.0f);
      const absl::Status status = c.AllReduce(data.data(), 100, DType::kFloat32, ReduceOp::kSum,
                                              ReduceOrder::kFastest, absl::Now() + limit);
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce 1 f32[100]"));
    });
  }
}

TEST(Nccl, FixedOrderHasTheBitsOfSharedMemoryAndFastestNeedNot) {
  constexpr int kWorld = 4;
  const auto value = [](int rank, int64_t i) {
    return static_cast<float>(rank == 0   ? 1e8
                              : rank == 2 ? -1e8
                                          : 0.3 + 0.001 * static_cast<double>(i));
  };
  std::vector<float> results[2];
  for (const Kind kind : {Kind::kShm, Kind::kNccl}) {
    Cluster cluster(kind, kWorld, 1 << 16);
    cluster.Run(1, 0, [&](Communicator& c, Transport&) {
      std::vector<float> data(1000);
      for (int64_t i = 0; i < 1000; ++i) data[i] = value(c.rank(), i);
      ASSERT_TRUE(c.AllReduce(data.data(), 1000, DType::kFloat32, ReduceOp::kSum,
                              ReduceOrder::kFixed, Never())
                      .ok());
      if (c.rank() == 0) results[kind == Kind::kShm ? 0 : 1] = data;
    });
  }
  EXPECT_EQ(results[0], results[1]);
  Cluster cluster(Kind::kNccl, kWorld, 1 << 16);
  cluster.Run(1, 0, [&](Communicator& c, Transport&) {
    std::vector<float> data(1000);
    for (int64_t i = 0; i < 1000; ++i) data[i] = value(c.rank(), i);
    ASSERT_TRUE(c.AllReduce(data.data(), 1000, DType::kFloat32, ReduceOp::kSum,
                            ReduceOrder::kFastest, Never())
                    .ok());
    EXPECT_NE(data, results[0]);  // the fake adds from the last rank on
  });
}

// ---- transports with other options ----

class Pair {
 public:
  explicit Pair(const std::function<void(int rank, NcclTransport::Options* options)>& change) {
    fake_nccl::SetEnqueue(FakeGpuQueue::Enqueue);
    for (int r = 0; r < 2; ++r) {
      ShmTransport::Options shm;
      shm.arena_bytes = 1 << 16;
      NcclTransport::Options options;
      options.library = &libraries_[r];
      options.queue = std::make_unique<FakeGpuQueue>(absl::StrCat("GPU-", r));
      options.control = *ShmTransport::Create(shm);
      change(r, &options);
      transports_.push_back(std::make_unique<NcclTransport>(std::move(options)));
    }
  }

  NcclLibrary& library(int rank) { return libraries_[rank]; }
  NcclTransport& transport(int rank) { return *transports_[rank]; }

  // Connects both, and runs `body` when that went well.
  std::vector<absl::Status> Run(int64_t generation, const Cluster::Body& body) {
    std::vector<GroupMember> members;
    for (int r = 0; r < 2; ++r) {
      members.push_back({r,
                         absl::StrCat("i", r),
                         "here",
                         1,
                         transports_[r]->address(),
                         transports_[r]->key(),
                         -1,
                         DealShards(2, 2, r),
                         "",
                         {}});
    }
    std::vector<absl::Status> statuses(2);
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        auto communicator = transports_[r]->Connect({generation, "job", "", members, r}, Never());
        statuses[r] = communicator.status();
        if (communicator.ok()) body(**communicator, *transports_[r]);
      });
    }
    threads.clear();
    return statuses;
  }

 private:
  NcclLibrary libraries_[2] = {fake_nccl::Library(), fake_nccl::Library()};
  std::vector<std::unique_ptr<NcclTransport>> transports_;
};

void Nothing(int, NcclTransport::Options*) {}

TEST(Nccl, AGpuThatDoesNotComeBackEndsItsWorker) {
  std::vector<float> data[2] = {std::vector<float>(16), std::vector<float>(16)};
  std::atomic<bool> ends{false};
  FakeGpuQueue* queues[2] = {};
  Pair pair([&](int rank, NcclTransport::Options* options) {
    if (rank == 1) options->end_within = absl::Milliseconds(20);
    queues[rank] = static_cast<FakeGpuQueue*>(options->queue.get());
  });
  pair.Run(1, [&](Communicator& c, Transport&) {
    if (c.rank() == 1) {
      FakeGpuQueue::Enqueue(queues[1], [&ends] {
        while (!ends) std::this_thread::yield();
      });
    }
    const std::jthread watchdog = AbortWhenMoving(c, "over");
    const absl::Status status = c.AllReduce(data[c.rank()].data(), 16, DType::kFloat32,
                                            ReduceOp::kSum, ReduceOrder::kFastest, Never());
    if (c.rank() == 0) {
      EXPECT_EQ(status, absl::AbortedError("over"));
      return;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not end, after this: over"));
    EXPECT_EQ(c.Barrier(Never()), status);
  });
  pair.transport(0).AbortConnect(2, "over");
  const auto statuses = pair.Run(2, [](Communicator&, Transport&) { FAIL(); });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kAborted) << statuses[0];
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInternal) << statuses[1];
  ends = true;
}

TEST(Nccl, AnOldLibraryWithoutRevokeMakesNewCommunicators) {
  Pair pair(Nothing);
  for (int r = 0; r < 2; ++r) {
    pair.library(r).api.revoke = nullptr;
    pair.library(r).api.shrink = nullptr;
    pair.library(r).api.grow = nullptr;
    pair.library(r).api.window_register = nullptr;
    pair.library(r).api.mem_alloc = nullptr;
  }
  fake_nccl::HangNext(1);
  for (const auto& status : pair.Run(1, [](Communicator&c, Transport&transport) {
         const std::jthread watchdog = AbortWhenMoving(c, "over");
         std::vector<float> result;
         EXPECT_EQ(Reduce(c, transport, 2, &result), absl::AbortedError("over"));
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const auto& status :
       pair.Run(2, [](Communicator&c, Transport&transport) { ExpectReduces(c, transport, 2); })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Nccl, AfterARevokeThatFailsANewCommunicatorIsMade) {
  Pair pair(Nothing);
  for (int r = 0; r < 2; ++r) {
    pair.library(r).api.revoke = [](NcclComm, int) { return kNcclInternalError; };
  }
  fake_nccl::HangNext(1);
  pair.Run(1, [](Communicator& c, Transport& transport) {
    const std::jthread watchdog = AbortWhenMoving(c, "over");
    std::vector<float> result;
    EXPECT_EQ(Reduce(c, transport, 2, &result), absl::AbortedError("over"));
  });
  for (const auto& status : pair.Run(2, [](Communicator&c, Transport&transport) {
         EXPECT_EQ(Nccl(transport).last_way(), Way::kNew);
         ExpectReduces(c, transport, 2);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

// It comes at once, or when the library, which does not block, is asked how it goes.
TEST(Nccl, AnErrorWhileACommunicatorIsMadeIsTold) {
  static std::atomic<bool> told;
  for (const bool later : {false, true}) {
    Pair pair(Nothing);
    told = false;
    if (later) {
      pair.library(1).api.async_error = [](NcclComm, NcclResult* error) {
        *error = kNcclRemoteError;
        told = true;
        return kNcclSuccess;
      };
    } else {
      pair.library(1).api.init_rank_config = [](NcclComm*, int, NcclUniqueId, int, NcclConfig*) {
        told = true;
        return kNcclSystemError;
      };
    }
    const std::jthread aborter([&] {
      while (!told) std::this_thread::yield();
      pair.transport(0).AbortConnect(1, "rank 1 said so");
    });
    const auto statuses = pair.Run(1, [](Communicator&, Transport&) { FAIL(); });
    // It waits for rank 1, which may have gone before the abort comes.
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kAborted) << statuses[0];
    EXPECT_THAT(std::string(statuses[0].message()),
                testing::AnyOf("rank 1 said so", HasSubstr("rank 1 has left generation 1")));
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kAborted) << statuses[1];
    EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("joining NCCL: NCCL says: a fake"));
  }
}

// Rank 0 alone asks the library for the id; what it heard is what all say.
TEST(Nccl, AllRanksSayWhyRank0HasNoId) {
  Pair pair(Nothing);
  const auto id_of_the_library = pair.library(0).api.get_unique_id;
  int64_t generation = 0;
  for (const auto& [result, code] : {std::pair{kNcclInvalidUsage, absl::StatusCode::kInternal},
                                     std::pair{kNcclSystemError, absl::StatusCode::kAborted}}) {
    static std::atomic<NcclResult> answer;
    answer = result;
    pair.library(0).api.get_unique_id = [](NcclUniqueId*) { return answer.load(); };
    const auto statuses = pair.Run(++generation, [](Communicator&, Transport&) { FAIL(); });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status, absl::Status(code, absl::StrCat("rank 0 has no id for NCCL's communicator: "
                                                        "ncclGetUniqueId: NCCL says: ",
                                                        pair.library(0).api.error_string(result),
                                                        " (asked for by a test)")));
    }
  }
  pair.library(0).api.get_unique_id = id_of_the_library;
  const auto statuses =
      pair.Run(++generation, [](Communicator& c, Transport& t) { ExpectReduces(c, t, 2); });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Nccl, VectorsAreRegisteredOnceForEachCommunicator) {
  Pair pair(Nothing);
  const int before = fake_nccl::GetCounts().windows;
  pair.Run(1, [](Communicator& c, Transport& transport) { ExpectReduces(c, transport, 2); });
  EXPECT_EQ(fake_nccl::GetCounts().windows, before);  // there was none when they met
  pair.Run(2, [](Communicator& c, Transport& transport) { ExpectReduces(c, transport, 2); });
  EXPECT_EQ(fake_nccl::GetCounts().windows, before + 2);
}

TEST(Nccl, AReductionTakesTheMemoryThatIsPlannedForIt) {
  constexpr int kWorld = 8, kShards = 24, kPiece = 256;  // a cluster's
  size_t summands = 0;
  for (int r = 0; r < kWorld; ++r) {
    summands += WholeNodes(kShards, DealShards(kShards, kWorld, r)).size();
  }
  Cluster cluster(Kind::kNccl, kWorld, 1 << 16);
  cluster.Run(1, kShards, [&](Communicator& c, Transport& transport) {
    ExpectReduces(c, transport, kShards);
    const auto own = WholeNodes(kShards, DealShards(kShards, kWorld, c.rank())).size();
    EXPECT_EQ(static_cast<NcclMemory&>(transport.vectors()).bytes(),
              NcclMemoryBytes(static_cast<int>(own), kCount,
                              StagingFloats(summands, kWorld, kCount, kPiece)));
  });
}

TEST(Nccl, RoomForWhatIsReceivedIsThereFromTheStart) {
  const int64_t staging = StagingFloats(2, 2, kCount, kNcclPiece);
  Pair pair([&](int, NcclTransport::Options* options) { options->staging = staging; });
  pair.Run(1, [&](Communicator& c, Transport& transport) {
    auto& memory = static_cast<NcclMemory&>(transport.vectors());
    ASSERT_TRUE(memory.Allocate(kCount, "a vector").ok());
    EXPECT_EQ(memory.bytes(), NcclMemoryBytes(1, kCount, staging));
    ExpectReduces(c, transport, 2);
    EXPECT_EQ(memory.bytes(), NcclMemoryBytes(2, kCount, staging));
  });
}

TEST(Nccl, FastestReducesTheTreeAsNcclLikes) {
  Pair pair([](int, NcclTransport::Options* options) { options->fastest = true; });
  pair.Run(1, [](Communicator& c, Transport& transport) { ExpectReduces(c, transport, 2); });
  pair.Run(2, [](Communicator& c, Transport& transport) {
    ExpectReduces(c, transport, 2, {{0, 64}, {64, 1024}, {1024, kCount}});
  });
}

TEST(Nccl, RanksThatCannotMeetAreTold) {
  Pair shared([](int, NcclTransport::Options* options) {
    options->queue = std::make_unique<FakeGpuQueue>("GPU-0");
  });
  for (const absl::Status& status : shared.Run(1, [](Communicator&, Transport&) { FAIL(); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 0 and 1 share GPU-0"));
  }
  Pair lacking([](int rank, NcclTransport::Options* options) {
    if (rank == 1) options->library = nullptr;
  });
  for (const absl::Status& status : lacking.Run(1, [](Communicator&, Transport&) { FAIL(); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has no NCCL"));
  }
}

TEST(Nccl, AnAbortEndsTheMeeting) {
  Pair pair(Nothing);
  // Rank 1's library never comes to it: it waits until the generation ends.
  pair.library(1).api.init_rank_config = [](NcclComm* comm, int ranks, NcclUniqueId id, int,
                                            NcclConfig* config) {
    const std::string other = absl::StrCat(id.bytes, "-other");
    NcclUniqueId wrong{};
    other.copy(wrong.bytes, other.size());
    return fake_nccl::Library().api.init_rank_config(comm, ranks, wrong, 1, config);
  };
  const int inits = fake_nccl::GetCounts().inits;
  const std::jthread aborter([&] {
    while (fake_nccl::GetCounts().inits < inits + 2) std::this_thread::yield();
    for (int r = 0; r < 2; ++r) pair.transport(r).AbortConnect(1, "superseded");
  });
  for (const absl::Status& status : pair.Run(1, [](Communicator&, Transport&) { FAIL(); })) {
    EXPECT_EQ(status, absl::AbortedError("superseded"));
  }
}

}  // namespace
}  // namespace lockstep
