// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/device.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/module.h"

namespace lockstep::engine::cuda {
namespace {

// A step takes milliseconds; a look at an event takes less than one.
constexpr absl::Duration kPoll = absl::Microseconds(20);

std::atomic<bool> any_is_abandoned{false};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int index) {
  LS_ASSIGN_OR_RETURN(const Tables* tables, LoadModule());
  LS_ASSIGN_OR_RETURN(const std::vector<DeviceProperties> devices, ListDevices());
  if (index < 0 || index >= static_cast<int>(devices.size())) {
    return absl::FailedPreconditionError(absl::StrCat("there is no GPU ", index,
                                                      ": this process sees ", devices.size(),
                                                      " (CUDA_VISIBLE_DEVICES narrows that)"));
  }
  std::unique_ptr<Device> device(new Device(tables));
  device->properties_ = devices[static_cast<size_t>(index)];
  const Runtime& runtime = device->runtime();
  const std::string what = absl::StrCat("GPU ", index);
  LS_RETURN_IF_ERROR(device->Check(runtime.set_device(index), what));
  LS_RETURN_IF_ERROR(LoadMatmul(*tables));  // for this device: it is current now
  LS_RETURN_IF_ERROR(device->Check(runtime.create_stream(&device->compute_), what));
  LS_RETURN_IF_ERROR(device->Check(runtime.create_stream(&device->copies_), what));
  LS_RETURN_IF_ERROR(device->Check(runtime.create_stream(&device->returns_), what));
  return device;
}

Device::~Device() {
  if (abandoned_) return;
  const Runtime& r = runtime();
  for (const Stream stream : {compute_, copies_, returns_}) {
    if (stream == nullptr) continue;
    r.wait_stream(stream);
    r.destroy_stream(stream);
  }
  for (const Event event : events_) r.destroy_event(event);
  for (void* pointer : registered_) r.unpin(pointer);
  for (void* pointer : pinned_) r.release_pinned(pointer);
  for (void* pointer : memory_) r.release(pointer);
}

void Device::Abandon() {
  abandoned_ = true;
  NoteAbandoned();
}

bool Device::AnyIsAbandoned() { return any_is_abandoned.load(); }
void Device::NoteAbandoned() { any_is_abandoned.store(true); }

absl::StatusOr<std::byte*> Device::Allocate(size_t bytes, const std::string& what) {
  void* pointer = nullptr;
  LS_RETURN_IF_ERROR(Check(runtime().allocate(bytes == 0 ? 1 : bytes, &pointer),
                           absl::StrCat(bytes, " bytes of the GPU's memory for ", what)));
  memory_.push_back(pointer);
  return static_cast<std::byte*>(pointer);
}

absl::StatusOr<std::byte*> Device::AllocatePinned(size_t bytes, const std::string& what) {
  void* pointer = nullptr;
  LS_RETURN_IF_ERROR(Check(runtime().allocate_pinned(bytes == 0 ? 1 : bytes, &pointer),
                           absl::StrCat(bytes, " bytes of page-locked memory for ", what)));
  pinned_.push_back(pointer);
  return static_cast<std::byte*>(pointer);
}

bool Device::Pin(void* pointer, size_t bytes) {
  if (runtime().pin(pointer, bytes) != 0) return false;
  registered_.push_back(pointer);
  return true;
}

void Device::Unpin(void* pointer) {
  const auto at = std::find(registered_.begin(), registered_.end(), pointer);
  LS_CHECK(at != registered_.end());
  if (!abandoned_) runtime().unpin(pointer);
  registered_.erase(at);
}

absl::StatusOr<Event> Device::MakeEvent() {
  Event event = nullptr;
  LS_RETURN_IF_ERROR(Check(runtime().create_event(&event), "an event"));
  events_.push_back(event);
  return event;
}

absl::StatusOr<Event> Device::MakeTimer() {
  Event event = nullptr;
  LS_RETURN_IF_ERROR(Check(runtime().create_timer(&event), "a timer"));
  events_.push_back(event);
  return event;
}

absl::Status Device::Check(Code code, const std::string& what) const {
  if (code == 0) return absl::OkStatus();
  return StatusOf(*tables_, code,
                  absl::StrCat(properties_.name, " (", properties_.uuid, "): ", what));
}

absl::Status Device::Copy(void* to, const void* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return absl::OkStatus();
  return Check(runtime().copy(to, from, bytes, stream), "a copy");
}

absl::Status Device::Wait(Stream stream) const {
  if (abandoned_) return absl::DeadlineExceededError("the GPU's work does not end");
  return Check(runtime().wait_stream(stream), "the GPU's work");
}

absl::Status Device::WaitFor(Event event, const std::function<bool()>& cancelled) const {
  while (true) {
    const int reached = runtime().event_reached(event);
    if (reached < 0) return Check(-reached, "the GPU's work");
    if (reached > 0) return absl::OkStatus();
    if (cancelled && cancelled()) return absl::AbortedError("the micro-batch was cancelled");
    absl::SleepFor(kPoll);
  }
}

}  // namespace lockstep::engine::cuda
