// SPDX-License-Identifier: Apache-2.0
// What a trainer saves outside its steps: alone, or with those that are left.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {
namespace {

// Returns whether all of the entry is in `held`, ascending.
bool Holds(const std::vector<engine::StateRange>& held, const engine::StateEntry& entry) {
  size_t at = entry.offset;
  for (const engine::StateRange& range : held) {
    if (range.begin <= at) at = std::max(at, range.end);
  }
  return at >= entry.offset + entry.bytes;
}

}  // namespace

Checkpointer::Decided Trainer::Decided() const {
  const int64_t best_step = executor_->tracking().best_step;
  // One that not all have counted is made again, by whoever goes on.
  const bool counted = eval_.has_value() && eval_->step() <= evaluated_step_;
  return {counted ? eval_ : std::nullopt, evaluated_step_, best_step,
          best_.step == best_step ? best_.sha256 : ""};
}

absl::StatusOr<std::string> Trainer::SaveAlone() {
  if (checkpointer_ == nullptr) {
    return absl::FailedPreconditionError("the job has no checkpoint section");
  }
  if (committed_step() == 0) return absl::FailedPreconditionError("no step was made");
  bool whole = begun_step() == committed_step();
  if (const auto held = policy_->held(); held.has_value()) {
    for (const engine::StateEntry& entry : plan().state()) whole = whole && Holds(*held, entry);
  }
  if (whole) return checkpointer_->SaveAlone(committed_step(), Decided());
  // All may have saved it together before they left.
  LS_ASSIGN_OR_RETURN(std::string saved, checkpointer_->FindSaved(begun_step()));
  if (!saved.empty()) return saved;
  return absl::NotFoundError("this worker has a part of the state alone (train.zero_stage)");
}

absl::StatusOr<std::string> Trainer::SaveTogether(Communicator* communicator) {
  checkpointer_->Enter(*communicator, committed_step(), std::exchange(restored_, ""),
                       resume_source_->copies);
  LS_RETURN_IF_ERROR(policy_->Publish(communicator, Deadline()));
  LS_RETURN_IF_ERROR(
      checkpointer_->Complete(communicator, committed_step(), Decided(), Deadline()));
  LS_ASSIGN_OR_RETURN(std::string saved, checkpointer_->FindSaved(committed_step()));
  if (!saved.empty()) return saved;
  return absl::UnavailableError(
      absl::StrCat("it could not be written to ", checkpointer_->folder()));
}

}  // namespace lockstep::worker
