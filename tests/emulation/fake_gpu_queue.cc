// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_gpu_queue.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace lockstep {

FakeGpuQueue::FakeGpuQueue(std::string uuid)
    : uuid_(std::move(uuid)), thread_("fake-gpu", [this] { Run(); }) {}

FakeGpuQueue::~FakeGpuQueue() {
  {
    absl::MutexLock lock(&mu_);
    ends_ = true;
  }
  thread_.Join();
}

void FakeGpuQueue::Enqueue(void* stream, std::function<void()> work) {
  static_cast<FakeGpuQueue*>(stream)->Push(std::move(work));
}

void FakeGpuQueue::Push(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  work_.push_back(std::move(work));
  ++pushed_;
}

absl::Status FakeGpuQueue::PushUsable(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (abandoned_) return absl::InternalError("the fake GPU's work does not end");
  work_.push_back(std::move(work));
  ++pushed_;
  return absl::OkStatus();
}

void FakeGpuQueue::Run() {
  const auto awake = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ends_ || !work_.empty(); };
  absl::MutexLock lock(&mu_);
  while (true) {
    mu_.Await(absl::Condition(&awake));
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    mu_.Unlock();
    work();
    mu_.Lock();
    ++done_;
  }
}

absl::StatusOr<void*> FakeGpuQueue::Allocate(size_t bytes, const std::string& what) {
  constexpr size_t kAlign = 256;
  void* memory =
      std::aligned_alloc(kAlign, std::max(kAlign, (bytes + kAlign - 1) / kAlign * kAlign));
  if (memory == nullptr) return absl::ResourceExhaustedError(what);
  return memory;
}

void FakeGpuQueue::Release(void* memory) {
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return done_ == pushed_; };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
  std::free(memory);
}

void FakeGpuQueue::Abandon() {
  absl::MutexLock lock(&mu_);
  abandoned_ = true;
}

absl::Status FakeGpuQueue::Copy(void* to, const void* from, size_t bytes) {
  return PushUsable([=] { std::memcpy(to, from, bytes); });
}

absl::Status FakeGpuQueue::Clear(void* memory, size_t bytes) {
  return PushUsable([=] { std::memset(memory, 0, bytes); });
}

absl::Status FakeGpuQueue::Add(const float* a, const float* b, float* out, int64_t count) {
  return PushUsable([=] {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
  });
}

absl::Status FakeGpuQueue::Mark() {
  absl::MutexLock lock(&mu_);
  if (abandoned_) return absl::InternalError("the fake GPU's work does not end");
  marked_ = pushed_;
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeGpuQueue::Reached() {
  absl::MutexLock lock(&mu_);
  return done_ >= marked_;
}

}  // namespace lockstep
