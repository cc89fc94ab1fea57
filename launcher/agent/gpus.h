// SPDX-License-Identifier: Apache-2.0
// The GPUs of this host, as the driver's own library lists them (NVML): no CUDA context is made, so
// that the agent holds none of their memory. A GPU that is cut into instances (MIG) counts as
// these. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_GPUS_H_
#define LOCKSTEP_LAUNCHER_AGENT_GPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/nvml.h"

namespace lockstep::launcher {

struct Gpu {
  std::string uuid;  // "GPU-..." or "MIG-..."
  std::string name = {};
  int64_t memory = 0;  // bytes
  int64_t used = 0;
  std::string cpus = {};  // near it: "0-31,64-95"; empty: not known
};
struct GpuList {
  std::string driver;  // its version
  std::vector<Gpu> gpus;
  std::string too_old;  // why it runs nothing of this build, and what to do; empty: it does
  std::vector<Nvml::Unlisted> unlisted;  // GPUs that the driver knows and that are not in `gpus`
};

// Those that CUDA_VISIBLE_DEVICES leaves, in its order. LOCKSTEP_GPUS ("GPU-a,MIG-b", or nothing)
// takes the driver's place. Errors: NotFound without a driver; Unavailable when it fails.
absl::StatusOr<GpuList> ListGpus();

// The GPUs that workers of this build can use: none without the CUDA module beside the worker, or
// with a driver that is too old for it or fails, which is logged, each text once, as GPUs are that
// cannot be asked or have no instances.
std::vector<Gpu> UsableGpus();

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_GPUS_H_
