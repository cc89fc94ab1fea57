// SPDX-License-Identifier: Apache-2.0
// A GPU's queue as a thread, its memory as the host's: with the fake NCCL on it, what runs late on
// a GPU runs late here too. Thread-safety: as GpuQueue.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_GPU_QUEUE_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_GPU_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "collectives/nccl/gpu_queue.h"
#include "common/thread.h"

namespace lockstep {

class FakeGpuQueue : public GpuQueue {
 public:
  // All memory of the process counts as that of the GPU.
  explicit FakeGpuQueue(std::string uuid);
  // REQUIRES: all that was queued ends.
  ~FakeGpuQueue() override;

  // For fake_nccl::SetEnqueue. `stream` is that of a FakeGpuQueue.
  static void Enqueue(void* stream, std::function<void()> work);

  std::string uuid() const override { return uuid_; }
  void* stream() const override { return const_cast<FakeGpuQueue*>(this); }
  bool Holds(const void*) const override { return true; }
  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) override;
  void Release(void* memory) override;
  void Abandon() override;
  absl::Status Copy(void* to, const void* from, size_t bytes) override;
  absl::Status Clear(void* memory, size_t bytes) override;
  absl::Status Add(const float* a, const float* b, float* out, int64_t count) override;
  absl::Status Mark() override;
  absl::StatusOr<bool> Reached() override;

 private:
  void Push(std::function<void()> work);
  // The same unless it is abandoned.
  absl::Status PushUsable(std::function<void()> work);
  void Run();

  const std::string uuid_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  int64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t marked_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_GPU_QUEUE_H_
