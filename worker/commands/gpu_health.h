// SPDX-License-Identifier: Apache-2.0
// What the driver says of this host's GPUs, for `launcher doctor`: where each sits, whether its
// memory is well, its links, who uses it, and how they reach each other.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_COMMANDS_GPU_HEALTH_H_
#define LOCKSTEP_WORKER_COMMANDS_GPU_HEALTH_H_

#include <string>
#include <vector>

#include "common/nvml.h"
#include "engine/cuda/doctor.h"

namespace lockstep::worker {

// One line for each GPU and each of "place", "ECC", "NVLink" (where there is any), "processes" and
// "peers" (where there are two); "MIG" or "driver" for one that is not listed. `sys` and `proc` are
// where sysfs and procfs are.
std::vector<engine::GpuFinding> ExamineByDriver(const Nvml& nvml, const std::string& sys,
                                                const std::string& proc);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_GPU_HEALTH_H_
