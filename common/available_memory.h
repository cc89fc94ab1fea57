// SPDX-License-Identifier: Apache-2.0
// How much memory this process can still take. The kernel itself does not refuse a memfd that is
// too large: fallocate goes on until the OOM killer ends someone. So a reservation asks here first.
// Thread-safety: pure functions of the system's state.
#ifndef LOCKSTEP_COMMON_AVAILABLE_MEMORY_H_
#define LOCKSTEP_COMMON_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace lockstep {

// Bytes: the smallest of MemAvailable and what the limits of this process's control groups leave,
// of the v2 hierarchy and of v1's memory controller. Page cache counts as free, as in MemAvailable:
// the kernel takes it back before it kills. INT64_MAX when the system does not say. `proc` and
// `groups` are where the kernel shows these.
int64_t AvailableMemory(const std::string& proc = "/proc",
                        const std::string& groups = "/sys/fs/cgroup");

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_AVAILABLE_MEMORY_H_
