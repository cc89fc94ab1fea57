// SPDX-License-Identifier: Apache-2.0
// What a call of NCCL's leaves that is not done when its caller gives it up.
#include "collectives/nccl/nccl_group.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulation/fake_gpu_queue.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {
namespace {

class NcclGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_nccl::SetEnqueue(FakeGpuQueue::Enqueue);
    ASSERT_EQ(library_.api.get_unique_id(&id_), kNcclSuccess);
  }
  std::unique_ptr<NcclGroup> Create(int world, int rank) {
    return NcclGroup::Create(&library_, &queue_, world, rank, id_, {}, {}).value();
  }
  // From here on no call is ever over. Returns a wait that gives it up.
  NcclWait NothingEnds() {
    library_.api.async_error = [](NcclComm, NcclResult* state) {
      *state = kNcclInProgress;
      return kNcclSuccess;
    };
    NcclWait wait;
    wait.deadline = absl::InfinitePast();
    return wait;
  }

  NcclLibrary library_ = fake_nccl::Library();
  FakeGpuQueue queue_{"GPU-0"};
  NcclUniqueId id_{};
};

// Where NCCL's thread would still write, and what ends the thread.
std::vector<void**> unfilled;
char filled = 0;
NcclResult AbortAndFill(NcclComm comm) {
  for (void** place : unfilled) *place = &filled;
  unfilled.clear();
  return fake_nccl::Library().api.abort(comm);
}

TEST_F(NcclGroupTest, WhatIsStillWrittenOutlivesItsCall) {
  static NcclResult answer;
  for (const NcclResult started : {kNcclSuccess, kNcclInProgress}) {
    library_ = fake_nccl::Library();
    auto group = Create(1, 0);
    answer = started;
    library_.api.window_register = [](NcclComm, void*, size_t, NcclWindow* window, int) {
      *window = nullptr;
      unfilled.push_back(reinterpret_cast<void**>(window));
      return answer;
    };
    library_.api.grow_id = [](NcclComm, NcclUniqueId* made) {
      unfilled.push_back(reinterpret_cast<void**>(made));
      return answer;
    };
    library_.api.abort = AbortAndFill;
    const NcclWait wait = NothingEnds();
    EXPECT_TRUE(absl::IsDeadlineExceeded(group->Register(nullptr, 0, wait)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(group->GrowId(wait).status()));
    // It would be memory of somebody else by now.
    std::vector<std::unique_ptr<NcclWindow>> windows;
    std::vector<std::unique_ptr<NcclUniqueId>> ids;
    for (int i = 0; i < 8; ++i) {
      windows.push_back(std::make_unique<NcclWindow>());
      ids.push_back(std::make_unique<NcclUniqueId>());
    }
    group.reset();
    EXPECT_TRUE(unfilled.empty());
    for (const auto& window : windows) EXPECT_EQ(*window, nullptr);
    for (const auto& id : ids) EXPECT_THAT(id->bytes, testing::Each(0));
  }
}

TEST_F(NcclGroupTest, AWindowThatIsStillBeingMadeGoesWithItsCommunicator) {
  auto group = Create(1, 0);
  void* memory = nullptr;
  ASSERT_EQ(library_.api.mem_alloc(&memory, kNcclWindowAlignment), kNcclSuccess);
  EXPECT_TRUE(group->Register(memory, kNcclWindowAlignment, {}).ok());
  const NcclWait wait = NothingEnds();
  EXPECT_TRUE(absl::IsDeadlineExceeded(group->Register(memory, kNcclWindowAlignment, wait)));
  // Not told to the others, which may be where nobody answers.
  library_.api.window_deregister = [](NcclComm, NcclWindow) {
    ADD_FAILURE() << "a call of a communicator that is busy";
    return kNcclSuccess;
  };
  group.reset();
  library_.api.mem_free(memory);
}

TEST_F(NcclGroupTest, ACommunicatorThatIsStillBeingMadeIsAbortedAfterTheOneItComesFrom) {
  std::unique_ptr<NcclGroup> other;
  std::thread peer([&] { other = Create(2, 1); });
  auto group = Create(2, 0);
  peer.join();
  const fake_nccl::Counts before = fake_nccl::GetCounts();
  const NcclWait wait = NothingEnds();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(NcclGroup::Shrink(group.get(), {1}, 1, 0, {}, wait).status()));
  EXPECT_EQ(fake_nccl::GetCounts().aborts, before.aborts) << "NCCL's thread is still at it";
  group.reset();
  EXPECT_EQ(fake_nccl::GetCounts().aborts, before.aborts + 2);
}

}  // namespace
}  // namespace lockstep
