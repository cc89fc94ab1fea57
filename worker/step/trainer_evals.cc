// SPDX-License-Identifier: Apache-2.0
// What a trainer evaluates, and the best weights that it keeps.
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "checkpoint/sha256.h"
#include "checkpoint/storage.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/model_writer.h"
#include "worker/control/disk_wait.h"
#include "worker/step/eval_tracker.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {

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
  if (EvalDue(step)) LS_RETURN_IF_ERROR(Track(result, record));
  board_->Enter(TRAINING);
  return absl::OkStatus();
}

absl::Status Trainer::Track(const EvalResult& result, RunRecord* record) {
  const Train& train = compiled_.job.train();
  if (!train.has_best() && !train.has_early_stop()) return absl::OkStatus();
  const engine::Tracking tracking = TrackEval(train, result, executor_->tracking());
  executor_->SetTracking(tracking);
  return tracking.best_step == result.step() ? WriteBest(record) : absl::OkStatus();
}

std::string Trainer::BestFile(const RunRecord* record, int64_t step) const {
  if (record != nullptr) return record->run_dir() + "/model/best.safetensors";
  const bool copy = checkpointer_ != nullptr && checkpointer_->KeepsBestToo();
  return copy ? checkpointer_->BestPath(step) : "";
}

absl::Status Trainer::WriteBest(RunRecord* record) {
  const int64_t step = committed_step();
  const std::string path = BestFile(record, step);
  if (path.empty() || best_saved_ == std::pair(path, step)) return absl::OkStatus();
  board_->Enter(SAVING);
  watch_.At(chaos::Place::kBest, step);
  LS_RETURN_IF_ERROR(executor_->PublishState());
  const absl::Status written = WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) {
    return SaveBest(path, record != nullptr ? checkpointer_ : nullptr, go_on);
  });
  if (written.ok()) {
    best_saved_ = {path, step};
  } else {
    LS_LOG_WARNING << "the weights of step " << step
                   << ", the best so far, are not saved: " << written.message()
                   << "; training goes on, best.safetensors comes with the next better ones";
  }
  return absl::OkStatus();
}

absl::Status Trainer::SaveBest(const std::string& path, Checkpointer* beside,
                               const std::function<bool()>& go_on) const {
  const int64_t step = committed_step();
  const auto weights = BestIsOfAverage(compiled_.job.train()) ? engine::Weights::kAverage
                                                              : engine::Weights::kCurrent;
  const auto written = WriteWeights(path, *compiled_.plan, state_, weights, go_on);
  if (written.ok()) {
    if (beside != nullptr) beside->KeepBest(step, path, *written, go_on);
    return absl::OkStatus();
  }
  // What has their name may be just them, by one who died since or from the checkpoint.
  LS_ASSIGN_OR_RETURN(const std::string wanted,
                      HashWeights(*compiled_.plan, state_, weights, go_on));
  checkpoint::Storage* const disk = checkpoint::Storage::Disk();
  bool there = checkpoint::KeepOnly(disk, path, wanted, go_on);
  if (beside != nullptr && there) beside->KeepBest(step, path, wanted, go_on);
  // A link needs no room.
  if (beside != nullptr && !there && beside->HasBest(step, wanted, go_on)) {
    there = disk->Link(beside->BestPath(step), path).ok();
  }
  return there ? absl::OkStatus() : written.status();
}

void Trainer::TellOfMissingBest(const RunRecord* record) const {
  const int64_t step = executor_->tracking().best_step;
  const std::string path = BestFile(record, step);
  if (step == 0 || path.empty() || ::access(path.c_str(), F_OK) == 0) return;
  LS_LOG_WARNING << "the best evaluation was that of step " << step
                 << ", whose weights are not saved: there is no " << path;
}

absl::Status Trainer::BringResumedBest(const std::string& run_dir) {
  const std::string path = run_dir + "/model/best.safetensors";
  bool brought = false;
  board_->Enter(SAVING);
  LS_RETURN_IF_ERROR(
      WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) -> absl::Status {
        LS_ASSIGN_OR_RETURN(
            brought, BringBest(resume_source_->storage, *resumed_, path, checkpointer_, go_on));
        return absl::OkStatus();
      }));
  best_saved_ = {};
  if (brought) best_saved_ = {path, resumed_->manifest.best_step};
  return absl::OkStatus();
}

}  // namespace lockstep::worker
