// SPDX-License-Identifier: Apache-2.0
// The folder that a run leaves: runs/<name>-<id>/ with job.yaml (resolved) and logs/<slot>.log; the
// workers add metrics, checkpoints and the model.
//
// What a coordinator says about a run is not taken on trust: its folder lies where the names say,
// whatever links somebody has put there. In the submitter's folder the way to the run's folder goes
// through no symbolic links but those of the agent's own user; in the run's folder none is
// followed. What may hold secrets can be read by the agent's user alone: the folder has the mode
// 0700 and files 0600. A folder that the agent's own user names on the command line (--run-dir,
// --runs-dir) may be reached through links.
//
// Where the thread acts as an account (AsAccount), others can make folders beside the account's:
// the run's folder is no link, it, its logs/, errors/ and log are the account's, and the folders on
// the way there from the submitter's, or the one that --runs-dir names, are the account's or
// root's, with the sticky bit where others may write.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_RUN_FOLDER_H_
#define LOCKSTEP_LAUNCHER_AGENT_RUN_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// `path`, taken from `folder` when it is relative.
std::string ResolvePath(const std::string& folder, const std::string& path);

// A run's folder by the user's wishes: `run_dir` itself, else in `runs_dir`, else `proposed`, which
// is the coordinator's.
std::string ChosenRunFolder(const std::string& run_dir, const std::string& runs_dir,
                            const std::string& proposed);

// Checks whether names and paths of an assignment are such as a coordinator makes them. Errors:
// InvalidArgument, with the one that is not.
absl::Status CheckAssignment(const WorkerAssignment& assignment);

// The run's folder of an assignment.
std::string RunFolder(const WorkerAssignment& assignment);
// Where the assignment's worker starts: its workdir, which lies in the run's folder when it came as
// a package (with the job's id in its name, where the folder's does not have it).
std::string WorkFolder(const WorkerAssignment& assignment);

// The run's folder of an assignment, opened, if it is there. Errors: NotFound; FailedPrecondition
// where a link, or an account's folder that is another's, stands in the way; those of open(2).
absl::StatusOr<UniqueFd> FindRunFolder(const WorkerAssignment& assignment, bool own);

// Makes the run's folder where it is missing. `own` and errors as below.
absl::Status MakeRunFolder(const WorkerAssignment& assignment, bool own);

// Makes the folder, its logs/ and job.yaml where they are missing; job-ID.yaml where a folder that
// is not named after the job has another job.yaml. Returns the log of the assignment's slot, open
// for appending. `own`: the folder is the user's word, not the coordinator's. Blocks on the file
// system. Errors: as of mkdir(2) and open(2), with the path and what to do; FailedPrecondition
// where a link, or what another than the thread's account has made, stands in the way.
absl::StatusOr<UniqueFd> OpenRunLog(const WorkerAssignment& assignment, bool own);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_RUN_FOLDER_H_
