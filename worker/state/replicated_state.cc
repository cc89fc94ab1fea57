// SPDX-License-Identifier: Apache-2.0
#include "worker/state/replicated_state.h"

#include "worker/state/replica_check.h"

namespace lockstep::worker {

absl::Status ReplicatedState::Agree(Communicator* communicator, int64_t start_step,
                                    StateAgreement* agreement, absl::Time deadline) {
  return AgreeOnState(communicator, executor_, state_, plan_->state_bytes(), start_step, agreement,
                      deadline);
}

// Everybody has all reduced gradients, and makes the same sums of them.
absl::Status ReplicatedState::ShareSums(Communicator* /*communicator*/, int64_t /*step*/,
                                        absl::Span<const engine::GradientSlice> /*reduced*/,
                                        absl::Time /*deadline*/) {
  return absl::OkStatus();
}

absl::StatusOr<engine::StepResult> ReplicatedState::Begin(
    int64_t step, absl::Span<const engine::GradientSlice> reduced) {
  return executor_->Update(step, reduced);
}

// The update has one half.
absl::Status ReplicatedState::Finish(Communicator* /*communicator*/, int64_t /*step*/,
                                     absl::Time /*deadline*/) {
  return absl::OkStatus();
}

absl::Status ReplicatedState::Publish(Communicator* /*communicator*/, absl::Time /*deadline*/) {
  return executor_->PublishState();
}

absl::Status ReplicatedState::CheckReplicas(Communicator* communicator, int64_t step,
                                            absl::Time deadline) const {
  return worker::CheckReplicas(communicator, state_, plan_->state_bytes(), step, deadline);
}

}  // namespace lockstep::worker
