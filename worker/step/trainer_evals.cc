// SPDX-License-Identifier: Apache-2.0
// What a trainer evaluates, and the best weights that it keeps.
#include <unistd.h>

#include <string>
#include <utility>

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
  const auto weights = BestIsOfAverage(compiled_.job.train()) ? engine::Weights::kAverage
                                                              : engine::Weights::kCurrent;
  const absl::Status written =
      WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) -> absl::Status {
        LS_RETURN_IF_ERROR(WriteWeights(path, *compiled_.plan, state_, weights, go_on).status());
        if (checkpointer_ != nullptr && record != nullptr) checkpointer_->KeepBest(step, path);
        return absl::OkStatus();
      });
  if (written.ok()) {
    best_saved_ = {path, step};
  } else {
    ::unlink(path.c_str());
    LS_LOG_WARNING << "the weights of step " << step
                   << ", the best so far, are not saved: " << written.message()
                   << "; training goes on, best.safetensors comes with the next better ones";
  }
  return absl::OkStatus();
}

void Trainer::TellOfMissingBest(const RunRecord* record) const {
  const int64_t step = executor_->tracking().best_step;
  const std::string path = BestFile(record, step);
  if (step == 0 || path.empty() || ::access(path.c_str(), F_OK) == 0) return;
  LS_LOG_WARNING << "the best evaluation was that of step " << step
                 << ", whose weights are not saved: there is no " << path;
}

absl::Status Trainer::BringResumedBest(const std::string& run_dir) {
  return WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) {
    return BringBest(resume_source_->storage, *resumed_, run_dir + "/model/best.safetensors",
                     checkpointer_, go_on);
  });
}

}  // namespace lockstep::worker
