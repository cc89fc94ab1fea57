// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/device_choice.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace lockstep::worker {

void ClaimDevice(const WorkerAssignment& assignment) {
  if (assignment.device().kind() != "cuda" || assignment.device().uuid().empty()) return;
  ::setenv("CUDA_VISIBLE_DEVICES", assignment.device().uuid().c_str(), 1);
}

absl::StatusOr<JobSpec> JobOnDevice(const JobSpec& job, const WorkerAssignment& assignment) {
  const std::string& wish = job.resources().device();
  const bool cuda = assignment.device().kind() == "cuda";
  if (cuda && assignment.device().uuid().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("resources.device is ", wish, ", but this host has no GPU left for worker ",
                     assignment.slot(),
                     ": 'launcher doctor' says what is missing; device: auto takes the CPU then"));
  }
  if (!cuda && absl::StartsWith(wish, "cuda")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "resources.device is ", wish, ", but the worker was given the CPU: submit the job again"));
  }
  if (!cuda && wish != "cpu" && assignment.slot() == 0) {
    constexpr const char* kSays = "device auto: not a GPU for each worker here; on the CPU";
    // Of interest where there is a GPU at all.
    if (::access("/proc/driver/nvidia/version", F_OK) == 0) {
      LS_LOG_INFO << kSays;
    } else {
      LS_LOG_DEBUG << kSays;
    }
  }
  JobSpec own = job;
  own.mutable_resources()->set_device(cuda ? "cuda" : "cpu");
  return own;
}

absl::StatusOr<std::string> DescribeDeviceOf(const engine::Plan& plan) {
  if (plan.spec().device == engine::DeviceKind::kCuda) return engine::DescribeGpu(0);
  return engine::DescribeDevice(plan.spec().threads);
}

}  // namespace lockstep::worker
