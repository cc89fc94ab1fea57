// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/device_choice.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log.h"
#include "engine/cuda/module.h"

namespace lockstep::worker {

void ClaimDevice(const WorkerAssignment& assignment) {
  if (assignment.device().kind() != "cuda" || assignment.device().uuid().empty()) return;
  ::setenv("CUDA_VISIBLE_DEVICES", assignment.device().uuid().c_str(), 1);
}

absl::Status CheckDevice(const WorkerAssignment& assignment) {
  const std::string& assigned = assignment.device().uuid();
  // Instances have other names in older drivers; what a driver calls by no name is taken as it is.
  constexpr absl::string_view kNameless = "GPU-00000000-0000-0000-0000-000000000000";
  if (assignment.device().kind() != "cuda" || !absl::StartsWith(assigned, "GPU-")) {
    return absl::OkStatus();
  }
  const auto seen = engine::cuda::ListDevices();
  if (!seen.ok() || seen->empty()) return absl::OkStatus();  // whoever opens it says so
  const absl::string_view uuid = seen->front().uuid;
  if (uuid == kNameless || absl::StartsWithIgnoreCase(uuid, assigned)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", assignment.slot(), " was given ", assigned, ", but CUDA shows it ", uuid,
      ": CUDA_VISIBLE_DEVICES has no effect on this host, so its workers would share GPUs"));
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
  for (const auto& [key, use] : {std::pair("nccl.use", &job.nccl().use()),
                                 std::pair("resources.cudnn", &job.resources().cudnn())}) {
    if (cuda || *use != "always") continue;
    return absl::FailedPreconditionError(
        absl::StrCat(key, " is always, but worker ", assignment.slot(),
                     " was given the CPU: set resources.device to cuda, or leave ", key, " out"));
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
  return engine::DescribeDevice(plan.kernels(), plan.spec().threads);
}

}  // namespace lockstep::worker
