// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/gpus.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "launcher/agent/host.h"
#include "launcher/agent/nvml.h"

namespace lockstep::launcher {
namespace {

absl::StatusOr<GpuList> AskDriver() {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open());
  LS_ASSIGN_OR_RETURN(const std::vector<Nvml::Device> devices, nvml->Devices());
  GpuList list;
  list.driver = nvml->DriverVersion();
  for (const Nvml::Device& device : devices) {
    list.gpus.push_back({device.uuid, device.name, device.memory, device.used});
  }
  return list;
}

// The GPU that an entry of CUDA_VISIBLE_DEVICES names, by number or the beginning of its UUID.
const Gpu* Named(const std::vector<Gpu>& gpus, absl::string_view entry) {
  int number = 0;
  if (absl::SimpleAtoi(entry, &number)) {
    const bool there = number >= 0 && number < static_cast<int>(gpus.size());
    return there ? &gpus[static_cast<size_t>(number)] : nullptr;
  }
  const auto it = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return !entry.empty() && absl::StartsWith(gpu.uuid, entry);
  });
  return it == gpus.end() ? nullptr : &*it;
}

}  // namespace

absl::StatusOr<GpuList> ListGpus() {
  if (const char* given = std::getenv("LOCKSTEP_GPUS")) {
    GpuList list;
    for (const absl::string_view uuid : absl::StrSplit(given, ',', absl::SkipEmpty())) {
      list.gpus.push_back({std::string(uuid), std::string(uuid), 0, 0});
    }
    return list;
  }
  absl::StatusOr<GpuList> list = AskDriver();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list.ok() || visible == nullptr) return list;
  std::vector<Gpu> seen;
  for (const absl::string_view entry : absl::StrSplit(visible, ',')) {
    const Gpu* gpu = Named(list->gpus, entry);
    if (gpu == nullptr) break;  // as the driver does: what follows is not seen
    seen.push_back(*gpu);
  }
  list->gpus = std::move(seen);
  return list;
}

std::vector<Gpu> UsableGpus() {
  const char* module = std::getenv("LOCKSTEP_CUDA_MODULE");
  std::string path = module == nullptr ? "" : module;
  if (path.empty()) {
    const absl::StatusOr<std::string> worker = FindProgram("worker", "LOCKSTEP_WORKER");
    if (!worker.ok()) return {};
    path = absl::StrCat(worker->substr(0, worker->rfind('/') + 1), "liblockstep_cuda.so");
  }
  if (::access(path.c_str(), R_OK) != 0) return {};
  absl::StatusOr<GpuList> list = ListGpus();
  return list.ok() ? std::move(list->gpus) : std::vector<Gpu>();
}

}  // namespace lockstep::launcher
