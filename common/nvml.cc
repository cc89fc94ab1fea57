// SPDX-License-Identifier: Apache-2.0
#include "common/nvml.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cuda_version.h"
#include "common/status.h"

namespace lockstep {
namespace {

// What of nvml.h is used: its ABI has been the same since these versions of its functions.
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilisation {
  unsigned gpu, memory;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned kTemperatureOfGpu = 0;
constexpr unsigned kSmClock = 1, kMemoryClock = 2;
constexpr unsigned kTextBytes = 96;
constexpr unsigned kMostProcesses = 256;
// "Not available", where the memory of a process is not told.
constexpr unsigned long long kNoValue = ~0ULL;

absl::Status Failed(int error) {
  return absl::UnavailableError(absl::StrCat("the NVIDIA driver gives error ", error));
}

using Text = int (*)(void*, char*, unsigned);

}  // namespace

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open() {
  const char* const given = std::getenv("LOCKSTEP_NVML_LIBRARY");
  const char* const file = given == nullptr ? "libnvidia-ml.so.1" : given;
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat("no NVIDIA driver: ", file, " is not there"));
  }
  std::unique_ptr<Nvml> nvml(new Nvml(library));
  if (const int error = nvml->Call<int (*)()>("nvmlInit_v2"); error != 0) return Failed(error);
  nvml->started_ = true;
  return nvml;
}

Nvml::~Nvml() {
  if (started_) Call<int (*)()>("nvmlShutdown");
  ::dlclose(library_);
}

std::string Nvml::DriverVersion() const {
  std::array<char, kTextBytes> text{};
  const int error =
      Call<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion", text.data(), kTextBytes);
  return error == 0 ? text.data() : "";
}

int Nvml::CudaVersion() const {
  int version = 0;
  const int error = Call<int (*)(int*)>("nvmlSystemGetCudaDriverVersion_v2", &version);
  return error == 0 ? version : 0;
}

int Nvml::Describe(void* handle, Device* device) const {
  device->handle = handle;
  std::array<char, kTextBytes + 1> text{};
  const int error = Call<Text>("nvmlDeviceGetUUID", handle, text.data(), kTextBytes);
  if (error != 0) return error;
  device->uuid = text.data();
  if (Call<Text>("nvmlDeviceGetName", handle, text.data(), kTextBytes) == 0) {
    device->name = text.data();
  }
  NvmlMemory memory{};
  if (Call<int (*)(void*, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", handle, &memory) == 0) {
    device->memory = static_cast<int64_t>(memory.total);
    device->used = static_cast<int64_t>(memory.used);
  }
  return 0;
}

std::optional<std::vector<Nvml::Device>> Nvml::Instances(void* handle) const {
  unsigned current = 0, pending = 0, most = 0;
  using Mode = int (*)(void*, unsigned*, unsigned*);
  if (Call<Mode>("nvmlDeviceGetMigMode", handle, &current, &pending) != 0 || current == 0) {
    return std::nullopt;
  }
  most = Number("nvmlDeviceGetMaxMigDeviceCount", handle).value_or(0);
  std::vector<Device> instances;
  for (unsigned i = 0; i < most; ++i) {
    void* instance = nullptr;
    using ByIndex = int (*)(void*, unsigned, void**);
    if (Call<ByIndex>("nvmlDeviceGetMigDeviceHandleByIndex", handle, i, &instance) != 0) continue;
    Device device;
    if (Describe(instance, &device) == 0) instances.push_back(std::move(device));
  }
  return instances;
}

absl::StatusOr<std::vector<Nvml::Device>> Nvml::Devices(std::vector<Unlisted>* unlisted) const {
  unsigned count = 0;
  if (const int error = Call<int (*)(unsigned*)>("nvmlDeviceGetCount_v2", &count); error != 0) {
    return Failed(error);
  }
  std::vector<Device> devices;
  for (unsigned i = 0; i < count; ++i) {
    void* handle = nullptr;
    using ByIndex = int (*)(unsigned, void**);
    int error = Call<ByIndex>("nvmlDeviceGetHandleByIndex_v2", i, &handle);
    std::optional<std::vector<Device>> parts;
    if (error == 0) parts = Instances(handle);
    if (error == 0 && !parts.has_value()) {
      Device whole;
      error = Describe(handle, &whole);
      parts.emplace({std::move(whole)});
    }
    if (error != 0 || parts->empty()) {
      if (unlisted != nullptr) unlisted->push_back({static_cast<int>(i), error});
      continue;
    }
    for (Device& part : *parts) {
      part.number = static_cast<int>(i);
      part.whole = handle;
      devices.push_back(std::move(part));
    }
  }
  return devices;
}

std::optional<unsigned> Nvml::Number(const char* name, void* handle) const {
  unsigned value = 0;
  if (Call<int (*)(void*, unsigned*)>(name, handle, &value) != 0) return std::nullopt;
  return value;
}

std::optional<unsigned> Nvml::NumberOf(const char* name, void* handle, unsigned kind) const {
  unsigned value = 0;
  if (Call<int (*)(void*, unsigned, unsigned*)>(name, handle, kind, &value) != 0) {
    return std::nullopt;
  }
  return value;
}

Nvml::Use Nvml::UseOf(const Device& device) const {
  Use use;
  NvmlMemory memory{};
  if (Call<int (*)(void*, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device.handle, &memory) == 0) {
    use.used = static_cast<int64_t>(memory.used);
  }
  NvmlUtilisation utilisation{};
  using GetUtilisation = int (*)(void*, NvmlUtilisation*);
  if (Call<GetUtilisation>("nvmlDeviceGetUtilizationRates", device.handle, &utilisation) == 0) {
    use.utilisation = static_cast<int>(utilisation.gpu);
  }
  void* const gpu = device.whole;
  if (const auto value = Number("nvmlDeviceGetPowerUsage", gpu)) use.watts = *value / 1e3;
  if (const auto value = Number("nvmlDeviceGetEnforcedPowerLimit", gpu)) {
    use.watts_limit = *value / 1e3;
  }
  use.celsius = NumberOf("nvmlDeviceGetTemperature", gpu, kTemperatureOfGpu);
  use.sm_mhz = NumberOf("nvmlDeviceGetClockInfo", gpu, kSmClock);
  use.memory_mhz = NumberOf("nvmlDeviceGetClockInfo", gpu, kMemoryClock);
  return use;
}

std::map<int64_t, int64_t> Nvml::Processes(const Device& device) const {
  std::array<NvmlProcess, kMostProcesses> found{};
  unsigned count = kMostProcesses;
  using GetProcesses = int (*)(void*, unsigned*, NvmlProcess*);
  if (Call<GetProcesses>("nvmlDeviceGetComputeRunningProcesses_v3", device.handle, &count,
                         found.data()) != 0) {
    return {};
  }
  std::map<int64_t, int64_t> processes;
  for (unsigned i = 0; i < count && i < kMostProcesses; ++i) {
    processes[found[i].pid] = found[i].bytes == kNoValue ? 0 : static_cast<int64_t>(found[i].bytes);
  }
  return processes;
}

std::string WhyTooOld(const Nvml& nvml) {
  const int version = nvml.CudaVersion();
  if (version == 0 || version / 1000 >= kCudaMajor) return "";
  return absl::StrCat("driver ", nvml.DriverVersion(), " runs CUDA ", version / 1000, ".",
                      version % 1000 / 10, "; CUDA ", kCudaMajor, " needs driver ",
                      kLeastCudaDriver, " or newer: update it, or use device: cpu");
}

std::string UnlistedText(const Nvml::Unlisted& gpu) {
  const int number = gpu.number;
  if (gpu.error != 0) {
    return absl::StrCat("GPU ", number, " is left out: ", Failed(gpu.error).message(),
                        " when it is asked for it (15: the GPU is lost, 4: no permission; "
                        "nvidia-smi -i ",
                        number, " says more)");
  }
  return absl::StrCat("GPU ", number,
                      " is in MIG mode and has no instance, so CUDA does not see it: make some "
                      "(nvidia-smi mig -cgi ... -C), or end that mode (nvidia-smi -i ",
                      number, " -mig 0)");
}

std::vector<Nvml::Device> VisibleDevices(const std::vector<Nvml::Device>& devices,
                                         const char* visible) {
  if (visible == nullptr) return devices;
  std::vector<Nvml::Device> seen;
  for (const absl::string_view entry : absl::StrSplit(visible, ',')) {
    int number = 0;
    const bool is_number = absl::SimpleAtoi(entry, &number);
    const Nvml::Device* found = nullptr;
    for (const Nvml::Device& device : devices) {
      const bool named = is_number ? &device - devices.data() == number
                                   : !entry.empty() && absl::StartsWith(device.uuid, entry);
      if (named && found == nullptr) found = &device;
    }
    if (found == nullptr) break;
    seen.push_back(*found);
  }
  return seen;
}

}  // namespace lockstep
