// SPDX-License-Identifier: Apache-2.0
// RestoreState where hosts have checkpoint folders of their own: the newest checkpoint that any of
// them has is read by the ranks that see it, and the others take the state from these.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_RESTORE_COPIES_H_
#define LOCKSTEP_WORKER_CHECKPOINT_RESTORE_COPIES_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "worker/checkpoint/restore.h"

namespace lockstep::worker {

// As RestoreState; the target's memory is the transport's. Errors: also Unimplemented for a state
// that is not whole on each rank.
absl::StatusOr<std::optional<Restored>> RestoreFromCopies(Communicator* communicator,
                                                          const ResumeSource& source,
                                                          const StateTarget& target,
                                                          ProgressBoard* board, Clock* clock,
                                                          absl::Time deadline);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_RESTORE_COPIES_H_
