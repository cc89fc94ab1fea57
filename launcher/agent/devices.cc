// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/devices.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace lockstep::launcher {

void AddDevices(const std::vector<Gpu>& gpus, AgentHello* hello) {
  hello->add_devices()->set_kind("cpu");
  std::set<std::string> uuids;
  for (const Gpu& gpu : gpus) uuids.insert(gpu.uuid);
  const bool shared = uuids.size() < gpus.size();
  for (const Gpu& gpu : gpus) {
    Device* device = hello->add_devices();
    device->set_kind("cuda");
    device->set_uuid(gpu.uuid);
    device->set_name(gpu.name);
    device->set_memory(gpu.memory);
    device->set_shared(shared);
    device->set_cpus(gpu.cpus);
  }
}

absl::Status CheckDevice(const WorkerAssignment& assignment, const std::vector<Gpu>& gpus) {
  const std::string& uuid = assignment.device().uuid();
  const bool has =
      std::any_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == uuid; });
  if (uuid.empty() || has) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the coordinator gives this worker the GPU ", uuid,
                   ", which this node does not have or may not use"));
}

std::string SharedWithAnotherJob(const WorkerAssignment& assignment,
                                 const std::vector<const WorkerAssignment*>& others) {
  const Device& device = assignment.device();
  if (device.uuid().empty() || device.shared()) return "";
  for (const WorkerAssignment* other : others) {
    if (other->job_id() == assignment.job_id() || other->device().uuid() != device.uuid()) continue;
    return absl::StrCat("the GPU ", device.uuid(),
                        " is given to two jobs at once: ", other->job_id(), " and ",
                        assignment.job_id());
  }
  return "";
}

}  // namespace lockstep::launcher
