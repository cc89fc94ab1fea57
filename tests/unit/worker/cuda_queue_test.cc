// SPDX-License-Identifier: Apache-2.0
// The GPU as the NCCL transport uses it, on the emulated one.
#include "worker/setup/cuda_queue.h"

#include <cstring>
#include <limits>
#include <vector>

#include "engine/cuda/device.h"
#include "engine/cuda/module.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/emulation/emulation.h"

namespace lockstep::worker {
namespace {

std::unique_ptr<CudaQueue> OpenQueue() {
  engine::cuda::UseTables(engine::cuda::EmulatedTables());
  auto queue = CudaQueue::Open("GPU-a");
  EXPECT_TRUE(queue.ok()) << queue.status();
  return *std::move(queue);
}

TEST(CudaQueue, KnowsItsMemory) {
  const auto queue = OpenQueue();
  auto* const data = static_cast<char*>(*queue->Allocate(1000, "data"));
  EXPECT_TRUE(queue->Holds(data));
  EXPECT_TRUE(queue->Holds(data + 999));
  EXPECT_FALSE(queue->Holds(data + 1000));
  EXPECT_FALSE(queue->Holds(&queue));
  queue->Release(data);
  EXPECT_FALSE(queue->Holds(data));
}

TEST(CudaQueue, NothingWaitsForAGpuThatIsAbandoned) {
  const engine::cuda::Tables& whole = *engine::cuda::EmulatedTables();
  engine::cuda::Runtime runtime = *whole.runtime;
  static std::vector<engine::cuda::Event> events;
  events.clear();
  runtime.create_event = [](engine::cuda::Event* event) {
    const auto code = engine::cuda::EmulatedTables()->runtime->create_event(event);
    events.push_back(*event);
    return code;
  };
  engine::cuda::Tables tables = whole;
  tables.runtime = &runtime;
  engine::cuda::UseTables(&tables);
  auto queue = *CudaQueue::Open("GPU-a");
  auto* const kept = static_cast<float*>(*queue->Allocate(1000, "data"));
  auto* const released = static_cast<float*>(*queue->Allocate(1000, "data"));
  const engine::cuda::Stream stream = queue->stream();
  static int waits;
  waits = 0;
  runtime.wait_stream = [](engine::cuda::Stream) {
    ++waits;
    return 0;
  };
  const size_t bytes = emulation::AllocatedBytes();
  queue->Abandon();
  EXPECT_TRUE(engine::cuda::Device::AnyIsAbandoned());
  for (const absl::Status& status :
       {queue->Mark(), queue->Reached().status(), queue->Copy(kept, released, 1000),
        queue->Clear(kept, 1000), queue->Add(kept, kept, kept, 10),
        queue->Allocate(1, "more").status()}) {
    EXPECT_EQ(status, absl::InternalError("the work of the GPU GPU-a does not end"));
  }
  queue->Release(released);
  queue.reset();
  EXPECT_EQ(waits, 0);
  EXPECT_EQ(emulation::AllocatedBytes(), bytes);
  // What a process leaves to its end.
  for (float* const memory : {kept, released}) whole.runtime->release(memory);
  whole.runtime->destroy_stream(stream);
  for (const engine::cuda::Event event : events) whole.runtime->destroy_event(event);
  engine::cuda::UseTables(&whole);
}

TEST(CudaQueue, AddsAsTheHostDoes) {
  engine::PinNumerics(1);  // subnormals are 0
  const auto queue = OpenQueue();
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const int64_t count : {0, 1, 255, 4097}) {
    std::vector<float> a(count), b(count), expected(count);
    for (int64_t i = 0; i < count; ++i) {
      a[i] = i % 5 == 0 ? 3 * tiny : 0.1f * static_cast<float>(i);
      b[i] = i % 7 == 0 ? tiny : 1e-3f / static_cast<float>(i + 1);
      const volatile float sum = a[i] + b[i];
      expected[i] = sum;
    }
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    auto* const x = static_cast<float*>(*queue->Allocate(bytes + 4, "x")) + 1;  // not aligned
    auto* const y = static_cast<float*>(*queue->Allocate(bytes, "y"));
    ASSERT_TRUE(queue->Copy(x, a.data(), bytes).ok());
    ASSERT_TRUE(queue->Copy(y, b.data(), bytes).ok());
    ASSERT_TRUE(queue->Add(x, y, x, count).ok());
    ASSERT_TRUE(queue->Copy(a.data(), x, bytes).ok());
    ASSERT_TRUE(queue->Mark().ok());
    while (!*queue->Reached()) {
    }
    EXPECT_TRUE(count == 0 || std::memcmp(a.data(), expected.data(), bytes) == 0) << count;
  }
}

}  // namespace
}  // namespace lockstep::worker
