// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this host's GPUs and of what can reach their memory, for `launcher
// doctor`. Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_COMMANDS_HOST_GPUS_H_
#define LOCKSTEP_WORKER_COMMANDS_HOST_GPUS_H_

#include <string>
#include <vector>

namespace lockstep::worker {

// A GPU's place in the machine.
struct GpuPlace {
  std::string pci;   // "0000:3b:00.0"
  int numa = -1;     // node; -1: the machine has none, or it is not known
  std::string cpus;  // near it: "0-31,64-95"
};
// The GPUs that NVIDIA's kernel driver holds, by address. `sys` is where sysfs is ("/sys").
std::vector<GpuPlace> GpuPlaces(const std::string& sys);

// Says whether network adapters and disks can reach the GPUs' memory: a sentence for each.
struct DirectAccess {
  bool rdma = false;
  std::string rdma_text;
  bool storage = false;
  std::string storage_text;
};
// `proc` is where procfs is ("/proc").
DirectAccess FindDirectAccess(const std::string& sys, const std::string& proc);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_HOST_GPUS_H_
