// SPDX-License-Identifier: Apache-2.0
// A rank that leaves its generation between calls, while the GPU of another is at the call before.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"
#include "tests/emulation/fake_gpu_queue.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Rank 1's GPU is late with all that follows a call, until the other rank has gone.
std::atomic<bool> is_late{false}, other_has_left{false};

void EnqueueWithLateGpu(void* stream, std::function<void()> work) {
  FakeGpuQueue::Enqueue(stream, std::move(work));
  if (!is_late || static_cast<FakeGpuQueue*>(stream)->uuid() != "GPU-1") return;
  FakeGpuQueue::Enqueue(stream, [] {
    while (!other_has_left) std::this_thread::yield();
    absl::SleepFor(absl::Milliseconds(20));  // so long its rank waits, and hears of it
  });
}

TEST(NcclDeparture, WhoLeavesAfterACallLeavesItToThoseWhoseGpuIsLate) {
  Cluster cluster(Kind::kNcclTurns, 2, 1 << 16);
  is_late = other_has_left = false;
  fake_nccl::SetEnqueue(EnqueueWithLateGpu);
  cluster.Run(1, 0, [](Communicator& c, Transport&) {
    if (c.rank() == 1) is_late = true;
    ASSERT_TRUE(c.Barrier(Never()).ok());
    std::vector<float> data(16, static_cast<float>(c.rank() + 1));
    const absl::Status status = c.AllReduce(data.data(), 16, DType::kFloat32, ReduceOp::kSum,
                                            ReduceOrder::kFastest, Never());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(data, std::vector<float>(16, 3.0f));
    if (c.rank() == 0) c.Abort("over");
    const absl::Status next = c.Barrier(Never());
    if (c.rank() == 0) other_has_left = true;
    EXPECT_EQ(next.code(), absl::StatusCode::kAborted) << next;
    EXPECT_THAT(std::string(next.message()), HasSubstr("over"));
  });
  fake_nccl::SetEnqueue(FakeGpuQueue::Enqueue);
}

}  // namespace
}  // namespace lockstep
