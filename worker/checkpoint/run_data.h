// SPDX-License-Identifier: Apache-2.0
// What a run's data was when it began, as its checkpoints say: the workers that are there since
// then read what the files held, and one that takes a dead worker's place opens them anew.
//
// Thread-safety: pure functions of the files; OpenedAsBegun on the communicator's thread.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_RUN_DATA_H_
#define LOCKSTEP_WORKER_CHECKPOINT_RUN_DATA_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint_folder.h"
#include "collectives/communicator.h"
#include "proto/coordinator.pb.h"
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

// Returns whether this rank has opened what the run began with: `began` of it is known, or of a
// rank on its node whose files had the same `stamp` (DataIdentity::stamp; 0: not known). All ranks
// of `generation` call it. Blocks until `deadline`. Errors: those of the communicator.
absl::StatusOr<bool> OpenedAsBegun(Communicator* communicator, const Generation& generation,
                                   bool began, uint64_t stamp, absl::Time deadline);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_RUN_DATA_H_
