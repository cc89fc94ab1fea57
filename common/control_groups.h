// SPDX-License-Identifier: Apache-2.0
// The control groups (cgroups) whose limits this process is under, as the kernel shows them: of the
// v2 hierarchy, and of one of v1's controllers.
// Thread-safety: pure functions of the system's state.
#ifndef LOCKSTEP_COMMON_CONTROL_GROUPS_H_
#define LOCKSTEP_COMMON_CONTROL_GROUPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

struct ControlGroup {
  std::string folder;  // of its control files, without a slash at the end
  bool v2 = false;
};

// Returns this process's groups, each with all above it up to the root: a limit of any of them
// holds. In a container the group's path may be the host's, of which nothing is to be seen here;
// the container's own is then the root. `controller` is v1's ("memory", "cpu"); `proc` and `groups`
// are where the kernel shows processes and groups.
std::vector<ControlGroup> GroupsOfProcess(const std::string& proc, const std::string& groups,
                                          absl::string_view controller);

// Returns the number at the beginning of a control file; none of "max" or a missing file.
std::optional<int64_t> ReadNumber(const std::string& path);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_CONTROL_GROUPS_H_
