// SPDX-License-Identifier: Apache-2.0
// The job's data as a worker opened it when it started, and what it tells of it: to the
// coordinator, and in checkpoints. Thread-safety: thread-compatible; what identity() returns is
// thread-safe.
#ifndef LOCKSTEP_WORKER_SETUP_OPENED_DATA_H_
#define LOCKSTEP_WORKER_SETUP_OPENED_DATA_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "data/dataset.h"
#include "data/fingerprint.h"
#include "proto/coordinator_worker.pb.h"
#include "proto/job.pb.h"
#include "worker/checkpoint/data_identity.h"
#include "worker/control/progress_board.h"
#include "worker/setup/compiled_job.h"

namespace lockstep::worker {

// Returns whether the job saves checkpoints.
bool SavesCheckpoints(const JobSpec& job);

// Opens files by `open`, which also reads them for what is told of them, once more if what `stamp`
// says of them was another thing afterwards: that may take long, and what is told of the files is
// to be of what was opened. Returns what
// `stamp` said before they were opened for the last time; it asks the file system about each file,
// which on a slow one takes long, and is called as seldom as can be. Errors: those of `open`.
absl::StatusOr<uint64_t> OpenUnchanged(absl::FunctionRef<uint64_t()> stamp,
                                       absl::FunctionRef<absl::Status()> open);

class OpenedData {
 public:
  // Opens both splits, and finds what tells the coordinator whether this host has the data that the
  // others have: with `over_hosts`, where the workers may be on several, the files are read for it.
  // Called once. Blocks for the disk, and says on `board` that it moves. Errors: those of
  // OpenJobData and data::FingerprintFiles.
  absl::Status Open(const JobSpec& job, bool over_hosts, ProgressBoard* board);

  const JobData& data() const { return data_; }
  // Of a job that saves checkpoints; else null.
  DataIdentity* identity() const { return identity_.get(); }
  // Warns where files of a job that saves checkpoints are not those that were opened any more: what
  // was written to in place has been read by the steps since. Blocks for the file system. The main
  // thread, once.
  void TellOfChanges(ProgressBoard* board, Clock* clock) const;
  // Notes that what the files hold was compared with what the run began with.
  void NoteCompared() { stamp_ = 0; }
  // Adds to a worker's word to the coordinator what its data is.
  void Tell(WorkerReady* ready) const;

 private:
  JobData data_;
  std::vector<data::FileFingerprint> files_;  // where they were looked at
  uint64_t stamp_ = 0;                        // WorkerReady::data_stamp
  std::unique_ptr<DataIdentity> identity_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_OPENED_DATA_H_
