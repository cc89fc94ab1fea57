// SPDX-License-Identifier: Apache-2.0
// Chooses the back end, and the executor of a plan, by the device.
#include "engine/exec/back_ends.h"

#include <utility>

#include "common/check.h"
#include "engine/cpu/backend.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/executor.h"
#include "engine/exec/executor.h"

namespace lockstep::engine {

std::unique_ptr<const Backend> BackendOf(DeviceKind device, const CpuTargets& targets) {
  if (device == DeviceKind::kCuda) return std::make_unique<CudaBackend>();
  return std::make_unique<CpuBackend>(targets);
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(std::shared_ptr<const Plan> plan,
                                                           const Memory& memory) {
  auto compiled = std::dynamic_pointer_cast<const CompiledPlan>(std::move(plan));
  LS_CHECK(compiled != nullptr) << "the plan is not one of Plan::Compile";
  if (compiled->spec().device == DeviceKind::kCuda) {
    return CudaExecutor::Create(std::move(compiled), memory);
  }
  return PlanExecutor::Create(std::move(compiled), memory);
}

}  // namespace lockstep::engine
