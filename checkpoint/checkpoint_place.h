// SPDX-License-Identifier: Apache-2.0
// What a run notes in its folder about where its checkpoints are. A folder without checkpoints
// begins a job anew; one that had some and is only not mounted must not.
//
// Thread-safety: pure functions of the files.
#ifndef LOCKSTEP_CHECKPOINT_CHECKPOINT_PLACE_H_
#define LOCKSTEP_CHECKPOINT_CHECKPOINT_PLACE_H_

#include <string>

#include "absl/status/status.h"
#include "checkpoint/storage.h"

namespace lockstep::checkpoint {

// The file in a run's folder.
inline constexpr const char* kPlaceName = "checkpoint_folder.json";

// Notes in `run_dir` that the run of that id has checkpoints in `folder`, and where its file system
// is mounted. Blocks until it is durable. Errors: those of the storage.
absl::Status NoteCheckpointPlace(Storage* storage, const std::string& run_dir,
                                 const std::string& run, const std::string& folder);

// Returns where the file system is mounted on which the run of that id, whose folder is `run_dir`,
// has noted that it has checkpoints in `folder`; empty: it has noted none there.
std::string NotedMountPoint(Storage* storage, const std::string& run_dir, const std::string& run,
                            const std::string& folder);

// There is no checkpoint in `folder`: is that so because there never was one, or because they were
// removed before this run began? Errors: NotFound when the run of that id itself, whose
// folder is `run_dir`, had some there; Unavailable when they are on a file system that is not
// mounted now, by the word of this run or, with `earlier`, of an earlier one of the job, in a
// folder beside it or in its own; those of looking. Blocks for `run_dir`, the folders beside it and
// `folder`; what these runs noted is not looked at, as it may be on a server that is gone.
absl::Status CheckNoneIsLost(Storage* storage, const std::string& run_dir, const std::string& run,
                             const std::string& folder, bool earlier);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_CHECKPOINT_PLACE_H_
