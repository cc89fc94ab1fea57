// SPDX-License-Identifier: Apache-2.0
// How batches come to the device of an executor on a GPU: into the next of two slots, ahead of
// their programs where the caller has them by then.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"
#include "engine/cuda/device_bytes.h"
#include "engine/cuda/executor.h"

namespace lockstep::engine {
namespace {

// Of a batch that goes to the device.
constexpr size_t kStageChunk = size_t{4} << 20;

}  // namespace

void CudaExecutor::LockFields(void* memory, size_t bytes) {
  if (device_->Pin(memory, bytes)) locked_[memory] = bytes;
}

void CudaExecutor::UnlockFields(void* memory) {
  if (locked_.erase(memory) == 0) return;
  device_->Wait(device_->copies()).IgnoreError();
  device_->Unpin(memory);
}

bool CudaExecutor::IsLocked(const void* data, size_t bytes) const {
  auto after = locked_.upper_bound(data);
  if (after == locked_.begin()) return false;
  --after;
  return static_cast<const std::byte*>(data) + bytes <=
         static_cast<const std::byte*>(after->first) + after->second;
}

absl::Status CudaExecutor::EndStage(const Slot& slot) const {
  return slot.straight ? device_->WaitFor(slot.copied, nullptr) : absl::OkStatus();
}

absl::Status CudaExecutor::StageFields(Fields fields, int64_t samples) {
  Slot& slot = slots_[next_slot_];
  ahead_.reset();
  slot.straight = false;
  // The copy before the last read this host memory; the program before the last, that of the
  // device.
  LS_RETURN_IF_ERROR(device_->WaitFor(slot.copied, nullptr));
  LS_RETURN_IF_ERROR(
      device_->Check(device_->runtime().stream_waits(device_->copies(), slot.used), "a batch"));
  const std::vector<FieldSpec>& specs = plan_->spec().input.fields;
  const int64_t room = plan_->spec().most_samples();
  size_t at = 0;
  for (size_t f = 0; f < fields.size(); ++f) {
    const auto bytes = static_cast<size_t>(samples * static_cast<int64_t>(specs[f].bytes()));
    const size_t taken =
        StagedBytes(static_cast<size_t>(room) * static_cast<size_t>(specs[f].bytes()));
    if (IsLocked(fields[f], bytes)) {
      LS_RETURN_IF_ERROR(device_->Copy(slot.device + at, fields[f], bytes, device_->copies()));
      slot.straight = true;
      at += taken;
      continue;
    }
    // In chunks: one is on its way while the next is made ready for it.
    for (size_t begin = 0; begin < bytes; begin += kStageChunk) {
      const size_t chunk = std::min(kStageChunk, bytes - begin);
      std::byte* const host = slot.host + at + begin;
      std::memcpy(host, static_cast<const std::byte*>(fields[f]) + begin, chunk);
      LS_RETURN_IF_ERROR(device_->Copy(slot.device + at + begin, host, chunk, device_->copies()));
    }
    at += taken;
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::StageAhead(int64_t step, int shard, int micro, Fields fields) {
  LS_RETURN_IF_ERROR(failed_);
  if (pending_.has_value()) {  // the device has nothing to do until the update launches it
    later_ = Ahead{step, shard, micro};
    later_fields_.assign(fields.begin(), fields.end());
    return absl::OkStatus();
  }
  LS_RETURN_IF_ERROR(StageFields(fields, plan_->spec().micro_batch));
  ahead_ = Ahead{step, shard, micro};
  return device_->Check(
      device_->runtime().record_event(slots_[next_slot_].copied, device_->copies()), "a batch");
}

absl::Status CudaExecutor::StageLater() {
  const std::optional<Ahead> next = std::exchange(later_, std::nullopt);
  return next.has_value() ? StageAhead(next->step, next->shard, next->micro, later_fields_)
                          : absl::OkStatus();
}

absl::Status CudaExecutor::StageBlock(Fields fields) {
  LS_CHECK(plan_->spec().evaluates) << "the plan has no room for evaluations";
  LS_RETURN_IF_ERROR(failed_);
  LS_RETURN_IF_ERROR(StageFields(fields, plan_->spec().eval_block));
  ahead_ = Ahead{.block = true};
  return device_->Check(
      device_->runtime().record_event(slots_[next_slot_].copied, device_->copies()), "a batch");
}

absl::StatusOr<int> CudaExecutor::Stage(Fields fields, int64_t samples,
                                        const DeviceScalars& scalars, std::optional<Ahead> wanted) {
  LS_RETURN_IF_ERROR(LaunchPending());
  if (!wanted.has_value() || wanted != ahead_) LS_RETURN_IF_ERROR(StageFields(fields, samples));
  ahead_.reset();
  const int number = next_slot_;
  next_slot_ ^= 1;
  const Slot& slot = slots_[number];
  const cuda::Runtime& runtime = device_->runtime();
  *slot.host_scalars = scalars;
  LS_RETURN_IF_ERROR(
      device_->Copy(slot.scalars, slot.host_scalars, sizeof(DeviceScalars), device_->copies()));
  LS_RETURN_IF_ERROR(
      device_->Check(runtime.record_event(slot.copied, device_->copies()), "a batch"));
  LS_RETURN_IF_ERROR(
      device_->Check(runtime.stream_waits(device_->compute(), slot.copied), "a batch"));
  return number;
}

}  // namespace lockstep::engine
