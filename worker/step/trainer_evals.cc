// SPDX-License-Identifier: Apache-2.0
// What a trainer evaluates, and the best weights that it keeps.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/sha256.h"
#include "checkpoint/storage.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/model_writer.h"
#include "worker/control/disk_wait.h"
#include "worker/step/eval_tracker.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {
namespace {

bool IsThere(const std::string& path) { return !path.empty() && ::access(path.c_str(), F_OK) == 0; }

}  // namespace

bool Trainer::EvalDue(int64_t step) const {
  if (evaluator_ == nullptr || compiled_.eval_every.never()) return false;
  return step == compiled_.total_steps || FallsOn(compiled_.eval_every, step);
}

absl::Status Trainer::Evaluate(Communicator* communicator, RunRecord* record) {
  const int64_t step = committed_step();
  board_->Enter(EVALUATING);
  watch_.At(chaos::Place::kEval, step);
  LS_ASSIGN_OR_RETURN(
      const EvalResult result,
      evaluator_->Run(communicator, step, compiled_.sampler->EpochsAfter(step), Deadline()));
  eval_ = result;
  evaluated_step_ = step;
  if (communicator->rank() == 0) link_->SendEval(result);
  if (RunRecord* const notes = notes_ != nullptr ? notes_ : record; notes != nullptr) {
    notes->Eval(result);
  }
  // An evaluation that a drain brought about is not one of the undisturbed run: it decides nothing.
  if (EvalDue(step)) LS_RETURN_IF_ERROR(Track(communicator, result, record));
  board_->Enter(TRAINING);
  return absl::OkStatus();
}

absl::Status Trainer::Track(Communicator* communicator, const EvalResult& result,
                            RunRecord* record) {
  const Train& train = compiled_.job.train();
  if (!train.has_best() && !train.has_early_stop()) return absl::OkStatus();
  const engine::Tracking tracking = TrackEval(train, result, executor_->tracking());
  executor_->SetTracking(tracking);
  if (tracking.best_step != result.step()) return absl::OkStatus();
  LS_RETURN_IF_ERROR(WriteBest(record));
  return AgreeOnBest(communicator);
}

std::string Trainer::BestFile(const RunRecord* record, int64_t step) const {
  if (record != nullptr) return record->run_dir() + "/model/best.safetensors";
  const bool copy = checkpointer_ != nullptr && checkpointer_->KeepsBestToo();
  return copy ? checkpointer_->BestPath(step) : "";
}

absl::Status Trainer::WriteBest(RunRecord* record) {
  const int64_t step = committed_step();
  const std::string path = BestFile(record, step);
  if (path.empty() || (best_.path == path && best_.step == step)) return absl::OkStatus();
  board_->Enter(SAVING);
  watch_.At(chaos::Place::kBest, step);
  LS_RETURN_IF_ERROR(executor_->PublishState());
  const absl::Status written = WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) {
    return SaveBest(path, record != nullptr, go_on);
  });
  if (!written.ok()) {
    LS_LOG_WARNING << "the weights of step " << step
                   << ", the best so far, are not saved: " << written.message()
                   << "; training goes on, best.safetensors comes with the next better ones";
  }
  return absl::OkStatus();
}

absl::Status Trainer::SaveBest(const std::string& path, bool of_run,
                               const std::function<bool()>& go_on) {
  const int64_t step = committed_step();
  const auto weights = BestIsOfAverage(compiled_.job.train()) ? engine::Weights::kAverage
                                                              : engine::Weights::kCurrent;
  best_ = {"", step, ""};
  checkpoint::Storage* const disk = checkpoint::Storage::Disk();
  const auto write = [&]() -> absl::StatusOr<std::string> {
    if (!of_run) LS_RETURN_IF_ERROR(checkpointer_->CheckMounted());
    return WriteWeights(path, *compiled_.plan, state_, weights, go_on);
  };
  const absl::StatusOr<std::string> written = write();
  if (written.ok()) {
    best_ = {path, step, *written};
  } else {
    LS_ASSIGN_OR_RETURN(best_.sha256, HashWeights(*compiled_.plan, state_, weights, go_on));
    // What has their name may be just them, by one who died since or from the checkpoint.
    const auto match = checkpoint::MatchFile(disk, path, best_.sha256, go_on);
    if (match == checkpoint::FileMatch::kSame) best_.path = path;
    // Beside the checkpoints it may be what those of another run know of.
    if (match == checkpoint::FileMatch::kOther && of_run) disk->Remove(path).IgnoreError();
  }
  if (checkpointer_ != nullptr && !best_.path.empty()) {
    checkpointer_->KeepBest(step, path, best_.sha256, go_on);
  }
  // A link needs no room.
  if (checkpointer_ != nullptr && best_.path.empty() && of_run &&
      checkpointer_->MatchBest(step, best_.sha256, go_on) == checkpoint::FileMatch::kSame &&
      disk->Link(checkpointer_->BestPath(step), path, go_on).ok()) {
    best_.path = path;
  }
  return best_.path.empty() ? written.status() : absl::OkStatus();
}

bool Trainer::has_best() const {
  return compiled_.job.train().has_best() && executor_->tracking().best_step > 0;
}

absl::Status Trainer::AgreeOnBest(Communicator* communicator) {
  const int64_t step = executor_->tracking().best_step;
  if (!compiled_.job.train().has_best() || step == 0) return absl::OkStatus();
  if (best_.step != step) best_ = {"", step, ""};
  // All who know it have the same, so that the maximum is it.
  std::array<int32_t, 64> digits{};
  std::copy_n(best_.sha256.begin(), std::min(best_.sha256.size(), digits.size()), digits.begin());
  LS_RETURN_IF_ERROR(communicator->AllReduce(digits.data(), static_cast<int64_t>(digits.size()),
                                             DType::kInt32, ReduceOp::kMax, ReduceOrder::kFixed,
                                             Deadline()));
  if (digits[0] != 0) best_.sha256.assign(digits.begin(), digits.end());
  return absl::OkStatus();
}

bool Trainer::HasBest(const std::string& path, bool of_run, const std::function<bool()>& go_on) {
  const bool there = IsThere(path);
  if (best_.sha256.empty()) return there;  // nobody knows what they are
  const bool kept = checkpointer_ != nullptr && path == checkpointer_->BestPath(best_.step);
  checkpoint::Storage* const disk = checkpoint::Storage::Disk();
  const auto match = kept ? checkpointer_->MatchBest(best_.step, best_.sha256, go_on)
                          : checkpoint::MatchFile(disk, path, best_.sha256, go_on);
  if (match != checkpoint::FileMatch::kOther) return there;
  if (!of_run) return false;
  if (checkpointer_ != nullptr &&
      checkpointer_->MatchBest(best_.step, best_.sha256, go_on) == checkpoint::FileMatch::kSame &&
      resume_source_->storage->Link(checkpointer_->BestPath(best_.step), path, go_on).ok()) {
    return true;
  }
  if (there) disk->Remove(path).IgnoreError();
  return false;
}

absl::Status Trainer::SettleBest(Communicator* communicator, const RunRecord* record) {
  const int64_t step = executor_->tracking().best_step;
  if (!compiled_.job.train().has_best() || step == 0) return absl::OkStatus();
  // Hosts that share no folder have them each where they were when they were written.
  const std::string path = BestFile(record, step);
  int32_t there = 0;
  if (!path.empty() || !best_.path.empty()) {
    board_->Enter(SAVING);
    WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) {
      const bool here = !path.empty() && HasBest(path, record != nullptr, go_on);
      const bool former = best_.path != path && HasBest(best_.path, /*of_run=*/false, go_on);
      there = here || former ? 1 : 0;
      return absl::OkStatus();
    }).IgnoreError();
  }
  LS_RETURN_IF_ERROR(communicator->AllReduce(&there, 1, DType::kInt32, ReduceOp::kMax,
                                             ReduceOrder::kFixed, Deadline()));
  if (there == 0 && record != nullptr) {
    LS_LOG_WARNING << "the best evaluation was that of step " << step
                   << ", whose weights are not saved: there is no " << path;
  }
  return absl::OkStatus();
}

bool Trainer::GoOnWithMetrics() {
  checkpoint::Manifest& manifest = resumed_->manifest;
  if (resumed_->evaluated_other) {
    manifest.evaluated_step = 0;
    manifest.eval.clear();
  }
  const std::optional<Train> before = TrainOf(manifest);
  if (!before.has_value() && !resumed_->evaluated_other) return false;
  const engine::Tracking saved = executor_->tracking();
  const engine::Tracking now = GoOnTracking(compiled_.job.train(), before.value_or(Train()),
                                            resumed_->evaluated_other, saved);
  executor_->SetTracking(now);
  if (now.best_step != saved.best_step) {
    manifest.best_step = 0;
    manifest.best_sha256.clear();
  }
  return now.best_step != saved.best_step || now.stop_step != saved.stop_step;
}

bool Trainer::IsFirstResumed(const Generation& generation, const std::vector<int>& holders,
                             int rank) {
  std::vector<std::string> there;
  for (const int holder : holders) {
    const std::string& member = generation.members(holder).incarnation();
    if (std::ranges::find(resumed_by_, member) != resumed_by_.end()) there.push_back(member);
  }
  resumed_by_ = std::move(there);
  return !resumed_by_.empty() && resumed_by_.front() == generation.members(rank).incarnation();
}

absl::Status Trainer::BringResumedBest(int rank, const std::string& run_dir) {
  const std::string path = run_dir + "/model/best.safetensors";
  bool brought = false;
  board_->Enter(SAVING);
  LS_RETURN_IF_ERROR(
      WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) -> absl::Status {
        LS_ASSIGN_OR_RETURN(brought, BringBest(rank, resume_source_->storage, *resumed_, path,
                                               checkpointer_, go_on));
        return absl::OkStatus();
      }));
  best_ = {brought ? path : "", resumed_->manifest.best_step, resumed_->manifest.best_sha256};
  return absl::OkStatus();
}

}  // namespace lockstep::worker
