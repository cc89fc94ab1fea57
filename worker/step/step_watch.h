// SPDX-License-Identifier: Apache-2.0
// What watches the parts of a step: the board that says where the worker is, the profiler that
// measures it, and the faults that a chaos run strikes there. A part is a scope; what it was before
// is so again at its end. No step allocates for it.
//
//   {
//     const StepWatch::Scope part(&watch, REDUCING, StepPhase::kReduce);
//     ...
//   }
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_STEP_WATCH_H_
#define LOCKSTEP_WORKER_STEP_STEP_WATCH_H_

#include <cstdint>
#include <optional>

#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "worker/control/progress_board.h"
#include "worker/profile/step_profiler.h"
#include "worker/step/fault_injector.h"
#include "worker/step/step_pace.h"

namespace lockstep::worker {

class StepWatch {
 public:
  explicit StepWatch(ProgressBoard* board) : board_(board) {}

  // May be null, as it is before; outlives this.
  void SetProfiler(StepProfiler* profiler) { profiler_ = profiler; }
  // As SetProfiler.
  void SetFaults(FaultInjector* faults) { faults_ = faults; }
  // Without it steps take no longer than they must.
  void SetPace(const StepPace& pace) { pace_ = pace; }

  // A step begins.
  void BeginStep(int64_t step, engine::Executor* executor) {
    if (profiler_ != nullptr) profiler_->BeginStep(step, executor);
    board_->Do(BETWEEN_STEPS);
    if (pace_.has_value()) pace_->BeginStep();
    At(chaos::Place::kStart, step);
  }
  // It is made whole, and published.
  void EndStep(int64_t step) {
    board_->Do(BETWEEN_STEPS);
    if (profiler_ != nullptr) profiler_->EndStep();
    At(chaos::Place::kCommitted, step);
  }

  // A fault that is due at this place of this step strikes now.
  void At(chaos::Place place, int64_t step) const {
    if (faults_ != nullptr) faults_->At(place, step);
  }

  // A part of the step: `activity` on the board, measured as `phase`, if that is one.
  class Scope {
   public:
    Scope(StepWatch* watch, Activity activity, std::optional<StepPhase> phase = std::nullopt)
        : part_(watch->board_, activity),
          timer_(phase.has_value() ? watch->profiler_ : nullptr,
                 phase.value_or(StepPhase::kCompute)) {}

   private:
    ProgressBoard::Part part_;
    PhaseTimer timer_;
  };

 private:
  ProgressBoard* const board_;
  StepProfiler* profiler_ = nullptr;
  FaultInjector* faults_ = nullptr;
  std::optional<StepPace> pace_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_STEP_WATCH_H_
