// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/gpus.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cpu_list.h"
#include "common/log.h"
#include "common/nvml.h"
#include "common/status.h"
#include "launcher/agent/host.h"

namespace lockstep::launcher {
namespace {

// Empty when neither the driver nor the kernel knows them.
std::string NearCpus(const Nvml& nvml, const Nvml::Device& device) {
  const CpuList cpus = nvml.NearCpus(device);
  if (!cpus.empty()) return CpuListText(cpus);
  std::ifstream file(
      absl::StrCat("/sys/bus/pci/devices/", nvml.PciAddress(device), "/local_cpulist"));
  std::string text;
  std::getline(file, text);
  return text;
}

absl::StatusOr<GpuList> AskDriver() {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open());
  GpuList list;
  LS_ASSIGN_OR_RETURN(const std::vector<Nvml::Device> devices, nvml->Devices(&list.unlisted));
  list.driver = nvml->DriverVersion();
  list.too_old = WhyTooOld(*nvml);
  for (const Nvml::Device& device : VisibleDevices(devices, std::getenv("CUDA_VISIBLE_DEVICES"))) {
    list.gpus.push_back(
        {device.uuid, device.name, device.memory, device.used, NearCpus(*nvml, device)});
  }
  return list;
}

// The same text once, as GPUs are asked for more than once.
void WarnOnce(const std::string& text) {
  static absl::Mutex mu;
  static std::set<std::string>* const said = new std::set<std::string>();
  absl::MutexLock lock(&mu);
  if (said->insert(text).second) {
    LS_LOG_WARNING << text;
  }
}

}  // namespace

absl::StatusOr<GpuList> ListGpus() {
  if (const char* given = std::getenv("LOCKSTEP_GPUS")) {
    GpuList list;
    for (const absl::string_view uuid : absl::StrSplit(given, ',', absl::SkipEmpty())) {
      list.gpus.push_back({std::string(uuid), std::string(uuid), 0, 0, ""});
    }
    return list;
  }
  return AskDriver();
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
  if (!list.ok()) {
    if (!absl::IsNotFound(list.status())) {
      WarnOnce(absl::StrCat("no GPU of this host is used: ", list.status().message()));
    }
    return {};
  }
  for (const Nvml::Unlisted& gpu : list->unlisted) WarnOnce(UnlistedText(gpu));
  if (!list->too_old.empty() && !list->gpus.empty()) {
    WarnOnce(absl::StrCat("no GPU of this host is used: ", list->too_old));
    return {};
  }
  return std::move(list->gpus);
}

}  // namespace lockstep::launcher
