// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/gpus.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/agent/host.h"

namespace lockstep::launcher {
namespace {

// What of nvml.h is used: its ABI has been the same since these versions of its functions.
using NvmlDevice = struct NvmlDeviceHandle*;
struct NvmlMemory {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  ~Nvml() {
    if (started_) Call<int (*)()>("nvmlShutdown");
    if (library_ != nullptr) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool found() const { return library_ != nullptr; }
  // 0, the library's error, or -1 without that function.
  template <typename F, typename... Args>
  int Call(const char* name, Args... args) {
    const auto function = reinterpret_cast<F>(::dlsym(library_, name));
    return function == nullptr ? -1 : function(args...);
  }
  int Start() {
    const int error = Call<int (*)()>("nvmlInit_v2");
    started_ = error == 0;
    return error;
  }

 private:
  void* const library_;
  bool started_ = false;
};

absl::StatusOr<GpuList> AskDriver() {
  Nvml nvml;
  if (!nvml.found()) {
    return absl::NotFoundError("no NVIDIA driver: libnvidia-ml.so.1 is not there");
  }
  const auto failed = [](int error) {
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver gives error ", error));
  };
  if (const int error = nvml.Start(); error != 0) return failed(error);
  GpuList list;
  std::array<char, 128> text{};
  using GetText = int (*)(char*, unsigned);
  if (nvml.Call<GetText>("nvmlSystemGetDriverVersion", text.data(), 96u) == 0) {
    list.driver = text.data();
  }
  unsigned count = 0;
  if (const int error = nvml.Call<int (*)(unsigned*)>("nvmlDeviceGetCount_v2", &count);
      error != 0) {
    return failed(error);
  }
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    using GetHandle = int (*)(unsigned, NvmlDevice*);
    int error = nvml.Call<GetHandle>("nvmlDeviceGetHandleByIndex_v2", i, &device);
    if (error != 0) return failed(error);
    Gpu gpu;
    using GetName = int (*)(NvmlDevice, char*, unsigned);
    error = nvml.Call<GetName>("nvmlDeviceGetUUID", device, text.data(), 96u);
    if (error != 0) return failed(error);
    gpu.uuid = text.data();
    if (nvml.Call<GetName>("nvmlDeviceGetName", device, text.data(), 96u) == 0) {
      gpu.name = text.data();
    }
    NvmlMemory memory{};
    using GetMemory = int (*)(NvmlDevice, NvmlMemory*);
    if (nvml.Call<GetMemory>("nvmlDeviceGetMemoryInfo", device, &memory) == 0) {
      gpu.memory = static_cast<int64_t>(memory.total);
      gpu.used = static_cast<int64_t>(memory.used);
    }
    list.gpus.push_back(gpu);
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
