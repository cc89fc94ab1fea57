// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library (NVML), loaded at run time: what the driver knows of GPUs, without a
// CUDA context. A GPU that is cut into instances (MIG) is listed as these. Of the library's ABI
// only what nvml.h has kept the same is used; functions that a driver does not have are as if it
// did not know. The sources: nvml.cc (devices, use), nvml_state.cc (place, health, pairs).
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_NVML_H_
#define LOCKSTEP_COMMON_NVML_H_

#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cpu_list.h"

namespace lockstep {

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

  // The newest CUDA that the driver's library runs: 13000; 0 when it does not say. It may be newer
  // than the driver (CUDA's forward compatibility).
  int CudaVersion() const;

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
  // A GPU that is not listed, and why.
  struct Unlisted {
    int number = 0;
    int error = 0;  // the driver's when it was asked for it; 0: in MIG mode without an instance
  };
  // In the driver's order. A GPU that is in MIG mode and has no instance is not listed, since CUDA
  // does not see it, and neither is one that the driver gives an error for; they are put into
  // `unlisted` (may be null). Errors: Unavailable.
  absl::StatusOr<std::vector<Device>> Devices(std::vector<Unlisted>* unlisted = nullptr) const;

  // What it does now. What the driver does not tell of this device is not set; all but memory and
  // utilisation is of the whole GPU.
  struct Use {
    std::optional<int64_t> used;     // bytes
    std::optional<int> utilisation;  // percent of the last moments in which a kernel ran
    std::optional<double> watts;
    std::optional<double> watts_limit;
    std::optional<int> celsius;
    std::optional<int> sm_mhz;
    std::optional<int> memory_mhz;
  };
  // As the driver tells it now.
  Use UseOf(const Device& device) const;
  // Bytes that each process holds of it; 0 where the driver does not say.
  std::map<int64_t, int64_t> Processes(const Device& device) const;

  // ---- of the whole GPU ----
  // Its address as the kernel writes it, "0000:3b:00.0"; empty when it is not told.
  std::string PciAddress(const Device& device) const;
  // The CPUs next to it; none when the driver does not say.
  CpuList NearCpus(const Device& device) const;

  struct Ecc {
    bool on = false;
    int64_t corrected = 0;  // errors of memory since the driver was loaded
    int64_t uncorrected = 0;
    bool remap_pending = false;  // rows are to be replaced at the next reset
    bool remap_failed = false;
  };
  // Nothing for GPUs without it.
  std::optional<Ecc> EccOf(const Device& device) const;

  struct Links {
    int active = 0;
    int all = 0;
    int version = 0;  // of NVLink; 0: not told
  };
  // Zeros without NVLink.
  Links NvLinks(const Device& device) const;

  // How two GPUs reach each other. Levels as the library counts them, from kOneBoard up.
  enum class Nearness { kUnknown, kOneBoard, kOneSwitch, kSwitches, kHostBridge, kNode, kSystem };
  struct Pair {
    Nearness nearness = Nearness::kUnknown;  // by PCI Express
    bool peer = false;                       // each reads and writes the other's memory
    bool nvlink = false;                     // and does so by NVLink
  };
  // Returns what is not told is as if it were not so.
  Pair PairOf(const Device& a, const Device& b) const;

 private:
  explicit Nvml(void* library) : library_(library) {}
  // 0, the library's error, or -1 without that function.
  template <typename F, typename... Args>
  int Call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<F>(::dlsym(library_, name));
    return function == nullptr ? -1 : function(args...);
  }
  // Returns the library's error, or 0 and what `handle` is.
  int Describe(void* handle, Device* device) const;
  // The instances of a GPU; nothing when it is whole.
  std::optional<std::vector<Device>> Instances(void* handle) const;
  // The numbers that functions of these shapes give; nothing when they fail.
  std::optional<unsigned> Number(const char* name, void* handle) const;
  std::optional<unsigned> NumberOf(const char* name, void* handle, unsigned kind) const;

  void* const library_;
  bool started_ = false;
};

// Returns why the driver runs nothing of the CUDA that the module is built with, and what to do;
// empty when it does, or does not say.
std::string WhyTooOld(const Nvml& nvml);

// Returns what is said of a GPU that is not listed: its number, why, and what to do.
std::string UnlistedText(const Nvml::Unlisted& gpu);

// Of `devices` those that CUDA_VISIBLE_DEVICES = `visible` leaves, in its order: numbers, or
// beginnings of UUIDs. Null: all. As with the driver, what follows an unknown one is not seen.
std::vector<Nvml::Device> VisibleDevices(const std::vector<Nvml::Device>& devices,
                                         const char* visible);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_NVML_H_
