// SPDX-License-Identifier: Apache-2.0
// The NUMA nodes of this host. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_NUMA_H_
#define LOCKSTEP_LAUNCHER_AGENT_NUMA_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/cpu_list.h"
#include "launcher/agent/gpus.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// Those that have some of `usable`, ascending, with what of it they have, their memory and those of
// `gpus` that are near their CPUs. None where the kernel tells of none. `sys` is where sysfs is
// ("/sys").
std::vector<NumaNode> NumaNodes(const std::string& sys, const CpuList& usable,
                                absl::Span<const Gpu> gpus);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_NUMA_H_
