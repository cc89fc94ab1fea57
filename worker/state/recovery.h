// SPDX-License-Identifier: Apache-2.0
// How the members of a generation come to have the same state. Each says which step its state is
// after. Those whose state is that of the start step hold it; whoever has another one, because it
// is new, copies it: a disjoint slice from each holder, verified by the holders' hashes.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STATE_RECOVERY_H_
#define LOCKSTEP_WORKER_STATE_RECOVERY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "engine/engine.h"

namespace lockstep::worker {

// The state that a rank gives up for a newer one. Should all who have that one die before this rank
// has it whole, the job goes on from here, a step earlier, and not from a checkpoint.
class OldState {
 public:
  // Copies the executor's `bytes` at `state`, if there are any, when half of the host's free memory
  // has room for this from each of its ranks; else nothing is kept.
  OldState(const Communicator& communicator, const engine::StateAccess& executor, const char* state,
           size_t bytes);
  // Returns whether it was kept: then it is in the executor's region again.
  bool PutBack(engine::StateAccess* executor) const;
  // The step that it is after.
  int64_t step() const { return step_; }

 private:
  const int64_t step_;
  const engine::Tracking tracking_;
  const size_t count_;
  std::unique_ptr<char[]> bytes_;
};

struct StateAgreement {
  // The ranks that held the state, in order.
  std::vector<int> holders;
  int first_holder() const { return holders.front(); }
  bool copied = false;  // this worker had to copy it
  // The newest step whose evaluation every holder has counted.
  int64_t evaluated_step = 0;
};

// Blocks until this rank has the state after `start_step`. `evaluated_step` is the newest step that
// this rank has evaluated. Errors: those of the communicator; Internal when nobody holds the state;
// DataLoss when a copy is damaged. After an error while copying the state is the one before
// (OldState), or the initial one.
// `state` is the executor's region of `bytes` in the transport's arena.
absl::StatusOr<StateAgreement> AgreeOnState(Communicator* communicator,
                                            engine::StateAccess* executor, void* state,
                                            size_t bytes, int64_t start_step,
                                            int64_t evaluated_step, absl::Time deadline);

// Gives the `bytes` at `state` (in the transport's arena) of the ranks `holders` to those that do
// not `have` them: a slice from each, compared with its hash. Blocks. Errors: those of the
// communicator; DataLoss when a slice is not what its holder has.
absl::Status CopyState(Communicator* communicator, char* state, int64_t bytes,
                       const std::vector<int>& holders, bool have, absl::Time deadline);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_RECOVERY_H_
