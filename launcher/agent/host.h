// SPDX-License-Identifier: Apache-2.0
// What an agent says about the machine that it runs on, and where it finds the other programs.
// Thread-safety: thread-safe, but for RaiseFileLimit (call it before threads open files).
#ifndef LOCKSTEP_LAUNCHER_AGENT_HOST_H_
#define LOCKSTEP_LAUNCHER_AGENT_HOST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::launcher {

// The host's short name.
std::string HostName();

// Bytes of memory that the system manages.
int64_t TotalMemory();

// 16 hexadecimal digits that no other process has.
std::string RandomId();

// The absolute path of the program `name` ("worker", "coordinator"): the path in the environment
// variable `override_name`, from the current folder, else beside the launcher's own executable.
// Errors: NotFound when it is not there or not executable.
absl::StatusOr<std::string> FindProgram(const std::string& name, const char* override_name);

// Raises the soft limit of open files to the hard one; returns the limit that holds.
int64_t RaiseFileLimit();

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_HOST_H_
