// SPDX-License-Identifier: Apache-2.0
// The folder that a run leaves: runs/<name>-<id>/ with job.yaml (resolved) and logs/<slot>.log; the
// workers add metrics, checkpoints and the model.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_RUN_FOLDER_H_
#define LOCKSTEP_LAUNCHER_AGENT_RUN_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// `path`, taken from `folder` when it is relative.
std::string ResolvePath(const std::string& folder, const std::string& path);

// A run's folder by the user's wishes: `run_dir` itself, else in `runs_dir`, else `proposed`, which
// is the coordinator's.
std::string ChosenRunFolder(const std::string& run_dir, const std::string& runs_dir,
                            const std::string& proposed);

// The run's folder of an assignment.
std::string RunFolder(const WorkerAssignment& assignment);
// Where the assignment's worker starts.
std::string WorkFolder(const WorkerAssignment& assignment);
// The log of the assignment's slot.
std::string LogPath(const WorkerAssignment& assignment);

// Makes the folder, its logs/ and job.yaml where they are missing. Blocks on the file system.
// Errors: as of mkdir(2) and open(2), with the path and what to do.
absl::Status PrepareRunFolder(const WorkerAssignment& assignment);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_RUN_FOLDER_H_
