// SPDX-License-Identifier: Apache-2.0
// Whether work can be done on this host: what would stop each job here somewhere in its middle is
// looked at before one begins. Findings are sentences for people; an empty one: all is well.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_HEALTH_CHECK_H_
#define LOCKSTEP_LAUNCHER_AGENT_HEALTH_CHECK_H_

#include <cstdint>
#include <string>

namespace lockstep::launcher {

// Below these a job's logs, or the program itself, would not last.
inline constexpr int64_t kLeastFreeDisk = int64_t{64} << 20;
inline constexpr int64_t kLeastFreeMemory = int64_t{64} << 20;

// Writes a file without a name on the folder's disk, makes it durable and reads it back, and looks
// for `least_free` bytes. Of a folder that is not there the nearest one above it is meant. What
// only says that this folder is not for this user (permissions, a read-only share) is a finding
// with `own` alone. Blocks on the disk.
std::string ExamineDisk(const std::string& folder, bool own, int64_t least_free = kLeastFreeDisk);

// Memory as workers share it: made, filled and mapped.
std::string ExamineSharedMemory();

// Says what is wrong where `available` bytes of memory are too few to begin with.
std::string ExamineMemory(int64_t available);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_HEALTH_CHECK_H_
