// SPDX-License-Identifier: Apache-2.0
// What a trainer evaluates, and the best weights that it keeps.
#include <string>

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

absl::Status Trainer::WriteBest(RunRecord* record) {
  const Train& train = compiled_.job.train();
  const int64_t step = committed_step();
  const bool copy = record == nullptr && checkpointer_ != nullptr && checkpointer_->KeepsBestToo();
  if (record == nullptr && !copy) return absl::OkStatus();
  board_->Enter(SAVING);
  watch_.At(chaos::Place::kBest, step);
  LS_RETURN_IF_ERROR(executor_->PublishState());
  const std::string path =
      copy ? checkpointer_->BestPath(step) : record->run_dir() + "/model/best.safetensors";
  const auto weights =
      BestIsOfAverage(train) ? engine::Weights::kAverage : engine::Weights::kCurrent;
  const absl::Status written =
      WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) -> absl::Status {
        LS_RETURN_IF_ERROR(WriteWeights(path, *compiled_.plan, state_, weights, go_on).status());
        if (checkpointer_ != nullptr && !copy) checkpointer_->KeepBest(step, path);
        return absl::OkStatus();
      });
  if (!written.ok()) {
    LS_LOG_WARNING << "the weights of step " << step
                   << ", the best so far, are not saved: " << written.message()
                   << "; training goes on, best.safetensors comes with the next better ones";
  }
  return absl::OkStatus();
}

absl::Status Trainer::BringResumedBest(const std::string& run_dir) {
  return WorkOnDisk(board_, clock_, [&](const std::function<bool()>& go_on) {
    return BringBest(resume_source_->storage, *resumed_, run_dir + "/model/best.safetensors",
                     checkpointer_, go_on);
  });
}

}  // namespace lockstep::worker
