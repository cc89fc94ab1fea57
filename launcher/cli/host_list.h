// SPDX-License-Identifier: Apache-2.0
// The hosts of a run, as --hosts and --hostfile name them. Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_CLI_HOST_LIST_H_
#define LOCKSTEP_LAUNCHER_CLI_HOST_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::launcher {

struct HostSlots {
  std::string host;  // as ssh takes it: "b", "user@10.0.0.2", "fd00::2"
  int slots = 0;     // workers there; 0: as the job says
  bool operator==(const HostSlots&) const = default;
};

// "a,b:4,[fd00::2]:2": names apart by commas, each with a number of workers after a colon or
// without. Errors: InvalidArgument, with the part that is wrong.
absl::StatusOr<std::vector<HostSlots>> ParseHostList(const std::string& text);

// A host on each line, "b", "b slots=4" or "b:4"; what follows '#' is no part of it. Errors:
// InvalidArgument, with `file` and the line's number.
absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& text,
                                                     const std::string& file);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_HOST_LIST_H_
