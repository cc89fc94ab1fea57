// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/cuda_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/cuda/device.h"
#include "engine/cuda/module.h"

namespace lockstep::worker {

absl::StatusOr<std::unique_ptr<CudaQueue>> CudaQueue::Open(std::string uuid) {
  LS_ASSIGN_OR_RETURN(const engine::cuda::Tables* tables, engine::cuda::LoadModule());
  LS_RETURN_IF_ERROR(engine::cuda::ListDevices().status());
  std::unique_ptr<CudaQueue> queue(new CudaQueue(tables, std::move(uuid)));
  const engine::cuda::Runtime& runtime = *tables->runtime;
  LS_RETURN_IF_ERROR(queue->Check(runtime.set_device(0), "the GPU"));
  LS_RETURN_IF_ERROR(queue->Check(runtime.create_stream(&queue->stream_), "a stream"));
  LS_RETURN_IF_ERROR(queue->Check(runtime.create_event(&queue->mark_), "an event"));
  LS_RETURN_IF_ERROR(queue->Mark());
  return queue;
}

CudaQueue::~CudaQueue() {
  if (abandoned_) return;
  const engine::cuda::Runtime& runtime = *tables_->runtime;
  if (stream_ != nullptr) {
    runtime.wait_stream(stream_);
    runtime.destroy_stream(stream_);
  }
  if (mark_ != nullptr) runtime.destroy_event(mark_);
  for (const auto& [memory, bytes] : blocks_) runtime.release(const_cast<void*>(memory));
}

absl::Status CudaQueue::Check(engine::cuda::Code code, const std::string& what) const {
  return engine::cuda::StatusOf(*tables_, code, what);
}

absl::Status CudaQueue::CheckUsable() const {
  if (!abandoned_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the work of the GPU ", uuid_, " does not end"));
}

bool CudaQueue::Holds(const void* data) const {
  auto after = blocks_.upper_bound(data);
  if (after == blocks_.begin()) return false;
  --after;
  return static_cast<const char*>(data) < static_cast<const char*>(after->first) + after->second;
}

absl::StatusOr<void*> CudaQueue::Allocate(size_t bytes, const std::string& what) {
  LS_RETURN_IF_ERROR(CheckUsable());
  void* memory = nullptr;
  LS_RETURN_IF_ERROR(Check(tables_->runtime->allocate(bytes == 0 ? 1 : bytes, &memory),
                           absl::StrCat(bytes, " bytes of the GPU's memory for ", what)));
  blocks_.emplace(memory, bytes);
  return memory;
}

void CudaQueue::Release(void* memory) {
  blocks_.erase(memory);
  if (abandoned_) return;
  tables_->runtime->wait_stream(stream_);
  tables_->runtime->release(memory);
}

void CudaQueue::Abandon() {
  abandoned_ = true;
  engine::cuda::Device::NoteAbandoned();
}

absl::Status CudaQueue::Copy(void* to, const void* from, size_t bytes) {
  LS_RETURN_IF_ERROR(CheckUsable());
  if (bytes == 0) return absl::OkStatus();
  return Check(tables_->runtime->copy(to, from, bytes, stream_), "a copy of gradients");
}

absl::Status CudaQueue::Clear(void* memory, size_t bytes) {
  LS_RETURN_IF_ERROR(CheckUsable());
  return Check(tables_->runtime->clear(memory, bytes, stream_), "gradients");
}

absl::Status CudaQueue::Add(const float* a, const float* b, float* out, int64_t count) {
  LS_RETURN_IF_ERROR(CheckUsable());
  return Check(tables_->kernels->add_vectors({a, b, out, count}, stream_), "a sum of gradients");
}

absl::Status CudaQueue::Mark() {
  LS_RETURN_IF_ERROR(CheckUsable());
  return Check(tables_->runtime->record_event(mark_, stream_), "the GPU's queue");
}

absl::StatusOr<bool> CudaQueue::Reached() {
  LS_RETURN_IF_ERROR(CheckUsable());
  const int reached = tables_->runtime->event_reached(mark_);
  if (reached < 0) return Check(-reached, "the GPU's queue");
  return reached > 0;
}

}  // namespace lockstep::worker
