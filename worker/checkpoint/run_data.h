// SPDX-License-Identifier: Apache-2.0
// What a run's data was when it began, as its checkpoints say: the workers that are there since
// then read what the files held, and one that takes a dead worker's place opens them anew.
//
// Thread-safety: pure functions of the files.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_RUN_DATA_H_
#define LOCKSTEP_WORKER_CHECKPOINT_RUN_DATA_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/data_identity.h"
#include "worker/checkpoint/restore.h"

namespace lockstep::worker {

// The newest checkpoint of `run` that says what the data was; null: there is none.
const checkpoint::FoundCheckpoint* FindRunData(const checkpoint::FolderContents& contents,
                                               const std::string& run);

// Checks whether `data` is what the run of `source` began with, as far as its checkpoints in the
// job's own folder say; returns whether they say it. Reads the files only where they may have
// changed. Blocks for the disk.
// Errors: FailedPrecondition, naming what differs, for which IsOtherData is true; where the job is
// not reproducible that is a warning.
absl::StatusOr<bool> CheckRunData(const ResumeSource& source, DataIdentity* data,
                                  const checkpoint::GoOn& go_on);
// Returns whether `status` is that error of CheckRunData.
bool IsOtherData(const absl::Status& status);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_RUN_DATA_H_
