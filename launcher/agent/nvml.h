// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library (NVML), loaded at run time: what the driver knows of GPUs, without a
// CUDA context. A GPU that is cut into instances (MIG) is listed as these. Thread-safety:
// thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_NVML_H_
#define LOCKSTEP_LAUNCHER_AGENT_NVML_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

class Nvml {
 public:
  // Loads libnvidia-ml.so.1, or $LOCKSTEP_NVML_LIBRARY, and starts it.
  // Errors: NotFound without it; Unavailable when it fails.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // The driver's version; empty when it does not say.
  std::string DriverVersion() const;

  // A GPU or an instance of one.
  struct Device {
    std::string uuid;  // "GPU-...", "MIG-..."
    std::string name;
    int64_t memory = 0;  // bytes
    int64_t used = 0;
    int number = 0;  // of the GPU, as nvidia-smi counts
    void* handle = nullptr;
    void* whole = nullptr;  // of the GPU that it is or belongs to
  };
  // In the driver's order. Errors: Unavailable.
  absl::StatusOr<std::vector<Device>> Devices() const;

  // What it does now. What the driver does not tell of this device is not set.
  GpuUsage Usage(const Device& device) const;
  // Bytes that each process holds of it.
  std::map<int64_t, int64_t> Processes(const Device& device) const;

 private:
  explicit Nvml(void* library) : library_(library) {}
  // 0, the library's error, or -1 without that function.
  template <typename F, typename... Args>
  int Call(const char* name, Args... args) const;
  absl::StatusOr<Device> Describe(void* handle) const;
  // The instances of a GPU; none when it is whole.
  std::vector<Device> Instances(void* handle) const;

  void* const library_;
  bool started_ = false;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_NVML_H_
