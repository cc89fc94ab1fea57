// SPDX-License-Identifier: Apache-2.0
// What a call of NCCL's leaves that is not done when its caller gives it up.
#include "collectives/nccl/nccl_group.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/emulation/fake_gpu_queue.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {
namespace {

// Where NCCL's thread would still write.
void* unfilled = nullptr;

TEST(NcclGroupTest, WhatIsStillWrittenOutlivesItsCall) {
  fake_nccl::SetEnqueue(FakeGpuQueue::Enqueue);
  NcclLibrary library = fake_nccl::Library();
  FakeGpuQueue queue("GPU-0");
  NcclUniqueId id{};
  ASSERT_EQ(library.api.get_unique_id(&id), kNcclSuccess);
  NcclWait wait;
  const auto group = NcclGroup::Create(&library, &queue, 1, 0, id, {}, wait).value();
  library.api.async_error = [](NcclComm, NcclResult* state) {
    *state = kNcclInProgress;
    return kNcclSuccess;
  };
  library.api.window_register = [](NcclComm, void*, size_t, NcclWindow* window, int) {
    unfilled = window;
    return kNcclInProgress;
  };
  library.api.grow_id = [](NcclComm, NcclUniqueId* made) {
    unfilled = made;
    return kNcclInProgress;
  };
  wait.deadline = absl::InfinitePast();
  EXPECT_TRUE(absl::IsDeadlineExceeded(group->Register(nullptr, 0, wait)));
  delete static_cast<NcclWindow*>(unfilled);  // would end the test, of memory of the call
  EXPECT_TRUE(absl::IsDeadlineExceeded(group->GrowId(wait).status()));
  delete static_cast<NcclUniqueId*>(unfilled);
}

}  // namespace
}  // namespace lockstep
