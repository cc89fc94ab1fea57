// SPDX-License-Identifier: Apache-2.0
// How many CPUs this process may use. The CPUs that it may run on are one thing; the time that its
// control groups get on them, as a container's `--cpus` or a unit's CPUQuota, is another.
// Thread-safety: pure functions of the system's state.
#ifndef LOCKSTEP_COMMON_AVAILABLE_CPUS_H_
#define LOCKSTEP_COMMON_AVAILABLE_CPUS_H_

#include <string>

namespace lockstep {

// The least whole number of CPUs whose time this process's control groups get, and one at least;
// INT_MAX where they set no limit. Of the v2 hierarchy and of v1's cpu controller. `proc` and
// `groups` are where the kernel shows these.
int CpuLimit(const std::string& proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

// The smaller of CpuLimit and the CPUs that the calling thread may run on; at least 1.
int AvailableCpus(const std::string& proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_AVAILABLE_CPUS_H_
