// SPDX-License-Identifier: Apache-2.0
// Where a run's files lie. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_CONTROL_RUN_DIR_H_
#define LOCKSTEP_WORKER_CONTROL_RUN_DIR_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

// The run's folder of an assignment, as an absolute path.
inline std::string RunDir(const WorkerAssignment& assignment) {
  if (!assignment.run_dir().empty() && assignment.run_dir()[0] == '/') return assignment.run_dir();
  return absl::StrCat(assignment.submit_dir(), "/", assignment.run_dir());
}

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_RUN_DIR_H_
