// SPDX-License-Identifier: Apache-2.0
// How the members of a generation come to have the same state. Each says which step its state is
// after. Those whose state is that of the start step hold it; whoever has another one, because it
// is new, copies it: a disjoint slice from each holder, verified by the holders' hashes.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STATE_RECOVERY_H_
#define LOCKSTEP_WORKER_STATE_RECOVERY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
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
  // The ranks that held the state, in order. Known before it is copied, and so also after an error
  // in that; empty: not known.
  std::vector<int> holders;
  bool copied = false;  // this worker had to copy it
  // The newest step that this rank has evaluated, whose decisions its state has (engine::Tracking).
  // Given by the caller, and kept with the state, also when an error follows.
  int64_t evaluated_step = 0;
};

// Returns what the one of `holders` says of itself whose evaluations all go on with: some may have
// counted the evaluation of the step, and others not. It is the first that has counted least, so
// that all make the same ones again. `rows` are by rank.
template <typename Row>
const Row& LeastEvaluated(const std::vector<Row>& rows, const std::vector<int>& holders) {
  const auto row = [&rows](int rank) -> const Row& { return rows[static_cast<size_t>(rank)]; };
  return row(*std::ranges::min_element(holders, {}, [&](int rank) { return row(rank).evaluated; }));
}

// Blocks until this rank has the state after `start_step`, as all others. Errors: those of the
// communicator; Internal when nobody holds the state; Unavailable when a copy is damaged. After an
// error while copying the state is the one before (OldState), or the initial one.
// `state` is the executor's region of `bytes` in the transport's arena.
absl::Status AgreeOnState(Communicator* communicator, engine::StateAccess* executor, void* state,
                          size_t bytes, int64_t start_step, StateAgreement* agreement,
                          absl::Time deadline);

// Gives the `bytes` at `state` (in the transport's arena) of the ranks `holders` to those that do
// not `have` them: a slice from each, compared with its hash. Blocks. Errors: those of the
// communicator; Unavailable when a slice is not what its holder has, which another life of this
// worker need not meet.
absl::Status CopyState(Communicator* communicator, char* state, int64_t bytes,
                       const std::vector<int>& holders, bool have, absl::Time deadline);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_RECOVERY_H_
