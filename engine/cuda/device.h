// SPDX-License-Identifier: Apache-2.0
// One GPU as an executor uses it: a stream for kernels, two for copies, memory that is allocated
// before anything runs and freed with the device. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_DEVICE_H_
#define LOCKSTEP_ENGINE_CUDA_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/kernels/tables.h"

namespace lockstep::engine::cuda {

class Device {
 public:
  // GPU `index`, current for the calling thread from here on.
  // Errors: FailedPrecondition without a module, a driver or that GPU; Internal.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Tables& tables() const { return *tables_; }
  const Runtime& runtime() const { return *tables_->runtime; }
  const DeviceProperties& properties() const { return properties_; }
  Stream compute() const { return compute_; }
  Stream copies() const { return copies_; }
  // For copies to the host that shall not wait for those to the device.
  Stream returns() const { return returns_; }

  // `bytes` of device memory, 256-byte aligned, until the device goes.
  // Errors: ResourceExhausted with `what` and who else holds memory.
  absl::StatusOr<std::byte*> Allocate(size_t bytes, const std::string& what);
  // The same of page-locked host memory.
  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes, const std::string& what);
  // Page-locks memory of the caller until the device goes or it is unpinned. False when that cannot
  // be: copies work without it, slower.
  bool Pin(void* pointer, size_t bytes);
  // REQUIRES: it was pinned.
  void Unpin(void* pointer);
  // Errors: Internal.
  absl::StatusOr<Event> MakeEvent();
  // An event that knows when it was reached. Errors: Internal.
  absl::StatusOr<Event> MakeTimer();

  // An error of `code`, which came of `what`, that names the GPU. OK for 0.
  absl::Status Check(Code code, const std::string& what) const;
  // Copies on `stream`; both sides stay as they are until it is done.
  absl::Status Copy(void* to, const void* from, size_t bytes, Stream stream) const;
  // Blocks until all work on `stream` is done. Errors: Internal with the first error of a kernel;
  // DeadlineExceeded, at once, from Abandon on.
  absl::Status Wait(Stream stream) const;
  // Blocks until `event` is reached or `cancelled`, which may be empty, says true: Aborted.
  absl::Status WaitFor(Event event, const std::function<bool()>& cancelled) const;
  // For a GPU whose work does not end: from here on nothing waits for it, and nothing is given
  // back, which would wait too, until the process ends.
  void Abandon();
  // Returns whether a GPU was abandoned in this process: it ends by _exit, since what else has used
  // that GPU, and the driver's own end, would wait for it. Thread-safe.
  static bool AnyIsAbandoned();
  // For what uses a GPU beside its Device and has abandoned it. Thread-safe.
  static void NoteAbandoned();

 private:
  explicit Device(const Tables* tables) : tables_(tables) {}

  const Tables* const tables_;
  DeviceProperties properties_;
  Stream compute_ = nullptr;
  Stream copies_ = nullptr;
  Stream returns_ = nullptr;
  std::vector<void*> memory_;
  std::vector<void*> pinned_;
  std::vector<void*> registered_;
  std::vector<Event> events_;
  bool abandoned_ = false;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_DEVICE_H_
