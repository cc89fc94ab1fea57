// SPDX-License-Identifier: Apache-2.0
// How the members of a generation have the training state: each all of it (ReplicatedState), or the
// optimizer's moments in parts (ShardedState). The step is the same with both; what they do beside
// it is here.
//
//   each generation:  policy->Agree(communicator, ...)
//   each step:        communicator->TreeReduce(...)        // of what is wanted()
//                     policy->ShareSums(communicator, step, reduced)
//                     policy->Begin(step, reduced)         // bound to the step from here on
//                     policy->Finish(communicator, step)   // committed
//
// Thread-safety: confined to the worker's main thread, but for Locate, which may be called from
// anywhere between two calls of Agree.
#ifndef LOCKSTEP_WORKER_STATE_STATE_POLICY_H_
#define LOCKSTEP_WORKER_STATE_STATE_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "engine/engine.h"
#include "worker/state/recovery.h"

namespace lockstep::worker {

class StatePolicy {
 public:
  virtual ~StatePolicy() = default;

  // Blocks until this rank has what it is to have of the state after `start_step`. Errors: those of
  // the communicator; Internal when nobody holds the state; Unavailable when a copy is damaged.
  virtual absl::Status Agree(Communicator* communicator, int64_t start_step,
                             StateAgreement* agreement, absl::Time deadline) = 0;

  // TreeReduceArgs::wanted of this generation's steps.
  virtual absl::Span<const std::vector<ElementRange>> wanted() const { return {}; }
  // Returns whether a checkpoint needs Publish before it.
  virtual bool publishes() const { return false; }
  // Returns whether peers read each other's state for a checkpoint: its copy is then made before
  // any of them takes part in the next reduction.
  virtual bool copies_read_peers() const { return false; }
  // After the reduction: all ranks have what they need of it, and know enough to begin the step.
  // Blocks. Errors: those of the communicator and of the device.
  virtual absl::Status ShareSums(Communicator* communicator, int64_t step,
                                 absl::Span<const engine::GradientSlice> reduced,
                                 absl::Time deadline) = 0;
  // The update of `step`, or its first half where there are two. Errors: those of the executor.
  virtual absl::StatusOr<engine::StepResult> Begin(
      int64_t step, absl::Span<const engine::GradientSlice> reduced) = 0;
  // The second half of `step`, if it is half done. Blocks. Errors: those of the communicator; the
  // step stays half done.
  virtual absl::Status Finish(Communicator* communicator, int64_t step, absl::Time deadline) = 0;

  // Brings the state regions of all whom Locate asks up to date. No copy is being made meanwhile.
  // Errors: those of the communicator and of the device.
  virtual absl::Status Publish(Communicator* communicator, absl::Time deadline) = 0;
  // Checks whether what several ranks have is the same, bit for bit, after `step`. Blocks. Errors:
  // as worker::CheckReplicas.
  virtual absl::Status CheckReplicas(Communicator* communicator, int64_t step,
                                     absl::Time deadline) const = 0;

  // The bytes of the state region that this rank has now, ascending; nothing: all of them.
  virtual std::optional<std::vector<engine::StateRange>> held() const { return std::nullopt; }
  // Returns whether not every rank of this generation has all of it: the same on all of them.
  virtual bool in_parts() const { return false; }
  // Where byte `offset` of the state lies, here or in a peer's memory, and how much of `*bytes`
  // from there on.
  virtual const char* Locate(size_t offset, size_t* bytes) const = 0;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_STATE_POLICY_H_
