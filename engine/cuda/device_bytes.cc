// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/device_bytes.h"

#include <algorithm>

#include "engine/cuda/kernel.h"
#include "engine/cuda/moments.h"

namespace lockstep::engine {

size_t StagedBatchBytes(const CompiledPlan& plan) {
  const TrainSpec& spec = plan.spec();
  const int64_t samples = spec.most_samples();
  size_t bytes = 0;
  for (const FieldSpec& field : spec.input.fields) {
    bytes += StagedBytes(static_cast<size_t>(samples) * static_cast<size_t>(field.bytes()));
  }
  return bytes;
}

size_t DeviceStateBytes(const CompiledPlan& plan, size_t moment_bytes) {
  const StateRange moments = CudaMoments::RangeOf(plan);
  return plan.state_bytes() - (moments.end - moments.begin) +
         CudaMoments::DeviceBytes(plan, moment_bytes);
}

size_t CompiledPlan::device_bytes(size_t moment_bytes) const {
  if (spec_.device == DeviceKind::kCpu) return 0;
  return DeviceStateBytes(*this, moment_bytes) + arena_bytes_ +
         static_cast<size_t>(layout_.count) * sizeof(float) + 2 * StagedBatchBytes(*this) +
         kCudaWorkspaceBytes;
}

}  // namespace lockstep::engine
