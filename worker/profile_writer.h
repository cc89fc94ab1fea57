// SPDX-License-Identifier: Apache-2.0
// Writes the profile of a run at its end: each rank what it measured, then rank 0 all of it. What
// cannot be written, or has no memory, costs the profile, not the run.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_PROFILE_WRITER_H_
#define LOCKSTEP_WORKER_PROFILE_WRITER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "proto/profile.pb.h"
#include "worker/control/progress_board.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {

class ProfileWriter {
 public:
  // Of a job whose run has this folder. `board` and `clock` must outlive it.
  ProfileWriter(std::string run_dir, std::string job, ProgressBoard* board, Clock* clock);

  // Writes what `trainer`, which measures, has measured as `rank`; collective. Blocks for the disk
  // and the other ranks. Errors: those of Barrier.
  absl::Status WriteRank(Trainer* trainer, Communicator* communicator, int rank);
  // On rank 0 puts together what the ranks have written since, sorted as MergeProfiles does. Blocks
  // for the disk.
  void Merge(const std::string& sort);

 private:
  // Returns whether `work`, a part of the profile, was done.
  bool Try(const std::function<absl::Status()>& work);

  const std::string run_dir_, job_;
  ProgressBoard* const board_;
  Clock* const clock_;
  int ranks_ = 0;  // whose profiles are to be put together here
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_PROFILE_WRITER_H_
