// SPDX-License-Identifier: Apache-2.0
// Of two runs at the same time in one folder (--run-dir) each would write over the other's model,
// so one has it. It is held by the launcher that has the run's coordinator, of which a run has one
// however many hosts share the folder, and is free when that process ends, however it does.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_LOCK_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace lockstep::launcher {

class RunLock {
 public:
  // Holds nothing.
  RunLock() = default;
  // Takes the folder, which is made where it is missing, for as long as the result lives. Where it
  // cannot be made, or its file system has no locks, the result holds nothing. Blocks for the file
  // system, not for the other run. Errors: FailedPrecondition, with that run's id.
  static absl::StatusOr<RunLock> Take(const std::string& run_dir);

  // Writes down whose the folder is.
  void Name(const std::string& job_id);

 private:
  explicit RunLock(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;  // locked
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_LOCK_H_
