// SPDX-License-Identifier: Apache-2.0
// The worker's GPU as the NCCL transport uses it: a stream of its own beside the engine's, and
// memory. It joins two layers that do not know each other.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_SETUP_CUDA_QUEUE_H_
#define LOCKSTEP_WORKER_SETUP_CUDA_QUEUE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/nccl/gpu_queue.h"
#include "engine/cuda/kernels/tables.h"

namespace lockstep::worker {

class CudaQueue : public GpuQueue {
 public:
  // On the process's first GPU, which others know as `uuid`.
  // Errors: FailedPrecondition without the CUDA module or a GPU; Internal.
  static absl::StatusOr<std::unique_ptr<CudaQueue>> Open(std::string uuid);
  ~CudaQueue() override;

  std::string uuid() const override { return uuid_; }
  void* stream() const override { return stream_; }
  bool Holds(const void* data) const override;
  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) override;
  void Release(void* memory) override;
  void Abandon() override;
  absl::Status Copy(void* to, const void* from, size_t bytes) override;
  absl::Status Clear(void* memory, size_t bytes) override;
  absl::Status Add(const float* a, const float* b, float* out, int64_t count) override;
  absl::Status Mark() override;
  absl::StatusOr<bool> Reached() override;

 private:
  CudaQueue(const engine::cuda::Tables* tables, std::string uuid)
      : tables_(tables), uuid_(std::move(uuid)) {}
  absl::Status Check(engine::cuda::Code code, const std::string& what) const;
  absl::Status CheckUsable() const;

  const engine::cuda::Tables* const tables_;
  const std::string uuid_;
  engine::cuda::Stream stream_ = nullptr;
  engine::cuda::Event mark_ = nullptr;
  std::map<const void*, size_t> blocks_;  // what is allocated, and its bytes
  bool abandoned_ = false;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_CUDA_QUEUE_H_
