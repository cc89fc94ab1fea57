// SPDX-License-Identifier: Apache-2.0
// Waiting for a disk. A flush says nothing of how far it is, so a worker that waits for one moves
// on meanwhile, and is not taken to hang; but not for a disk that takes nothing any more.
#ifndef LOCKSTEP_WORKER_CONTROL_DISK_WAIT_H_
#define LOCKSTEP_WORKER_CONTROL_DISK_WAIT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/control/progress_board.h"

namespace lockstep::worker {

// How long a disk may take or give nothing, and how often it is looked at: well below any limit of
// the coordinator's for a worker that does not move.
inline constexpr absl::Duration kDiskPatience = absl::Minutes(10);
inline constexpr absl::Duration kDiskLook = absl::Milliseconds(50);

// Waits, one after the other. Thread-safety: confined to one thread.
class DiskWait {
 public:
  // Both outlive this.
  DiskWait(ProgressBoard* board, Clock* clock)
      : board_(board), clock_(clock), looked_at_(clock->Now()) {}

  // Called every kDiskLook, or as often as heartbeats leave; `taken` counts what the disk took or
  // gave so far. Returns whether there is patience left; while there is, the board moves. Time in
  // which the process stood still does not count.
  bool Look(int64_t taken);

 private:
  ProgressBoard* const board_;
  Clock* const clock_;
  int64_t taken_ = -1;
  absl::Time looked_at_;
  absl::Duration waited_;  // since the disk took something
};

// Does `work`, which reads or writes files, in a thread, and has the board move meanwhile. `work`
// calls what it is given whenever the disk took something; that says true: go on. Blocks until
// `work` has returned; once the patience is over the board stands still, so that the coordinator
// takes this worker to hang and another one tries. Returns what `work` does. The main thread.
absl::Status WorkOnDisk(
    ProgressBoard* board, Clock* clock,
    const std::function<absl::Status(const std::function<bool()>& go_on)>& work);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_DISK_WAIT_H_
