// SPDX-License-Identifier: Apache-2.0
// Every rank has the whole training state. Thread-safety: as StatePolicy.
#ifndef LOCKSTEP_WORKER_STATE_REPLICATED_STATE_H_
#define LOCKSTEP_WORKER_STATE_REPLICATED_STATE_H_

#include "worker/state/state_policy.h"

namespace lockstep::worker {

class ReplicatedState : public StatePolicy {
 public:
  // `state` is the executor's region in the transport's arena; all outlive this.
  ReplicatedState(const engine::Plan* plan, engine::Executor* executor, char* state)
      : plan_(plan), executor_(executor), state_(state) {}

  absl::Status Agree(Communicator* communicator, int64_t start_step, StateAgreement* agreement,
                     absl::Time deadline) override;
  absl::Status ShareSums(Communicator* communicator, int64_t step,
                         absl::Span<const engine::GradientSlice> reduced,
                         absl::Time deadline) override;
  absl::StatusOr<engine::StepResult> Begin(
      int64_t step, absl::Span<const engine::GradientSlice> reduced) override;
  absl::Status Finish(Communicator* communicator, int64_t step, absl::Time deadline) override;
  absl::Status Publish(Communicator* communicator, absl::Time deadline) override;
  absl::Status CheckReplicas(Communicator* communicator, int64_t step,
                             absl::Time deadline) const override;
  const char* Locate(size_t offset, size_t* /*bytes*/) const override { return state_ + offset; }

 private:
  const engine::Plan* const plan_;
  engine::Executor* const executor_;
  char* const state_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_REPLICATED_STATE_H_
