// SPDX-License-Identifier: Apache-2.0
// The step loop of one worker: joins the engine, the data, the collectives and the state rules of
// exactly-once training (docs/architecture.md).
//
//   trainer = Trainer::Create(compiled, parts);   // memory reserved, the state is that of step 0
//   until it is done:
//     trainer->JoinState(communicator, ...);      // each generation
//     trainer->RunGeneration(communicator, ...);
//
// The state is written only by the engine's Update. A step's gradients are not overwritten before
// every member has published its commit. A generation that is aborted leaves the state after the
// newest committed step, and the next one goes on from there.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_TRAINER_H_
#define LOCKSTEP_WORKER_STEP_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "data/loader.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/restore.h"
#include "worker/control/control_link.h"
#include "worker/control/progress_board.h"
#include "worker/control/run_record.h"
#include "worker/control/step_header.h"
#include "worker/profile/interpreter.h"
#include "worker/profile/step_profiler.h"
#include "worker/setup/compiled_job.h"
#include "worker/state/partial_sums.h"
#include "worker/state/state_policy.h"
#include "worker/state/step_vector.h"
#include "worker/step/evaluator.h"
#include "worker/step/fault_injector.h"
#include "worker/step/step_watch.h"

namespace lockstep::worker {

// How a generation ended, when it was not aborted.
struct TrainOutcome {
  bool drained = false;    // stopped early because it was asked to
  bool regrouped = false;  // the members left together, to go on with others
};

class Trainer {
 public:
  // What a trainer works with; all of it outlives the trainer.
  struct Parts {
    const JobData* data = nullptr;
    Transport* transport = nullptr;
    ProgressBoard* board = nullptr;
    ControlLink* link = nullptr;
    Clock* clock = nullptr;
  };

  // Reserves all memory (state and gradients in the transport's arena), writes the state of step 0.
  // Errors: ResourceExhausted, InvalidArgument.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const CompiledJob& compiled,
                                                         const Parts& parts);

  // Sets what every worker keeps of its steps, whether it writes it or not, and the faults that it
  // is to suffer; both may be null and outlive this. `on_mark` is called when the state was
  // restored for a generation, and after the first step of each.
  void Observe(RunRecord* notes, FaultInjector* faults, std::function<void()> on_mark) {
    notes_ = notes;
    faults_ = faults;
    watch_.SetFaults(faults);
    if (faults_ != nullptr) faults_->Expose(state_);
    on_mark_ = std::move(on_mark);
    // From here on: the made batch of DeviceHash is no step.
    if (interpreter_ != nullptr) executor_->Observe(interpreter_.get());
  }

  // As StepWatch::SetPace.
  void SetPace(const StepPace& pace) { watch_.SetPace(pace); }

  // Saves checkpoints with `checkpointer`, and begins with one of `source` when nobody has any
  // state. Both are null without checkpoints, and outlive this.
  void SaveWith(Checkpointer* checkpointer, const ResumeSource* source) {
    checkpointer_ = checkpointer;
    resume_source_ = source;
  }

  // Hash that tells kinds of devices apart.
  absl::StatusOr<std::string> DeviceHash() {
    sums_->Begin({0, 1});
    return vector_->DeviceHash(executor_.get(), sums_->NextLeaf());
  }

  // Finishes the step after the state's when `reduced` is it: its gradients are whole; with sharded
  // moments it begins the step, and the next generation finishes it. `last` is the communicator
  // that reduced them. Errors: InvalidArgument as the job wishes for steps that are not finite.
  absl::Status FinishStep(Communicator* last, const ReducedStep& reduced);
  // The step that this rank may be behind in was begun by a member, so all can: finishes it, as
  // above, where `last` (null: nothing) has its reduction.
  absl::Status CatchUp(Communicator* last, int64_t start_step);
  // Brings the state to that after the generation's start step with the other members, of whom it
  // uses the incarnations. `holders` is set to the ranks that held it, in order, as soon as they
  // are known: also when the copy of the state fails then. An evaluation of that step that was due
  // and that not all who held it had made is the first thing of the generation, for all of them.
  // When the step is 0, the members go on from a checkpoint if there is one; `run_dir` then gets
  // the best weights so far. Blocks. Errors: as StatePolicy::Agree and RestoreState;
  // InvalidArgument when it is of a step beyond the last one.
  absl::Status JoinState(Communicator* communicator, const Generation& generation,
                         const std::string& run_dir, std::vector<int>* holders);

  // Trains from the state's step to the end, or until a stop that all ranks agree on. `record` is
  // written when it is not null. Blocks. Errors: Aborted when the generation ended (the state is
  // that after committed_step()), DataLoss, ...
  absl::StatusOr<TrainOutcome> RunGeneration(Communicator* communicator, ShardRange held,
                                             RunRecord* record);

  // Saves the state as this worker has it, in no generation, unless it is saved there already.
  // Returns the checkpoint's path. Blocks. Errors: FailedPrecondition when the job saves no
  // checkpoints or no step was made; NotFound when a part of the state is with others; those of
  // saving.
  absl::StatusOr<std::string> SaveAlone();
  // The same with those that have the other parts, after JoinState, in a generation in which no
  // step is made. REQUIRES: SaveAlone found a part of the state alone. Errors: those of the
  // communicator and of saving.
  absl::StatusOr<std::string> SaveTogether(Communicator* communicator);

  int64_t total_steps() const { return compiled_.total_steps; }
  int64_t committed_step() const { return executor_->committed_step(); }
  // The newest step that this worker is bound to: committed_step(), or the one after it.
  int64_t begun_step() const { return executor_->begun_step(); }
  double epochs_done() const { return compiled_.sampler->EpochsAfter(committed_step()); }
  double train_seconds() const { return train_seconds_; }
  // Returns where a collective gives up that begins now. A member that stands still is found by the
  // coordinator (it misses heartbeats, progress or start_timeout), which ends the generation:
  // whatever moves takes as long as it takes. Only where the coordinator is lost for good, so that
  // nobody would end it, there is a bound.
  absl::Time Deadline() const;
  double samples_per_second() const;
  // The newest evaluation, if there was one.
  const std::optional<EvalResult>& eval() const { return eval_; }
  // Returns whether an evaluation of this job's was the best so far, whose weights are to be kept.
  bool has_best() const;
  const engine::Plan& plan() const { return *compiled_.plan; }
  // The state region: see Plan::state().
  const void* state() const { return state_; }
  // Brings it up to date. Errors: as Executor::PublishState.
  absl::Status PublishState() { return executor_->PublishState(); }
  // How this rank has it.
  const StatePolicy& policy() const { return *policy_; }
  // Blocks until no copy for a checkpoint is being made, also of peers' memory.
  void WaitForCopy() {
    if (checkpointer_ != nullptr) checkpointer_->WaitForCopy();
  }
  // Returns what measures the job's `profile` steps; null without.
  StepProfiler* profiler() { return profiler_.get(); }

 private:
  Trainer(const CompiledJob& compiled, const Parts& parts);
  absl::Status Reserve(Transport* transport);
  absl::Status ReserveState(Transport* transport);
  absl::Status MakePolicy(Transport* transport, float* gradients);
  // Makes what the job's `profile` and `debug` ask for.
  absl::Status MakeObservers();
  // One step. header_ says what all ranks are to do after it.
  absl::Status Step(Communicator* communicator, ShardRange held, RunRecord* record);
  void NoteFirstCommit();
  // Forward and backward of the shards that this worker holds.
  absl::Status RunShards(Communicator* communicator, ShardRange held, int64_t step);
  absl::Status RunShard(const data::Batch& batch, float* leaf,
                        const engine::Executor::Hooks& hooks);
  // Makes `fields` those of micro-batch `micro` of a batch.
  void PointTo(const data::Batch& batch, int micro, std::vector<const void*>* fields) const;
  // Takes the batch after this one and brings it to a device that computes meanwhile.
  absl::Status StageNext();
  // Their sum over all shards, as far as this worker needs it.
  absl::StatusOr<absl::Span<const Slice>> Reduce(Communicator* communicator, int64_t step);
  // Returns what this worker would have all do after the step.
  StepHeader::Wishes Wishes(const Communicator& communicator) const;
  // Returns what is reduced in `step`, from the nodes that this worker contributes.
  TreeReduceArgs ReductionOf(int64_t step, absl::Span<const NodeBuffer> nodes) const;
  // Returns what of it is the plan's, until the next call.
  absl::Span<const engine::GradientSlice> GradientsIn(absl::Span<const Slice> reduced);
  // Bucket `bucket` of the step's last shard is there: begins to reduce the part that it completes.
  absl::Status BeginReducing(Communicator* communicator, int64_t step, int bucket);
  // The update of the step that header_ is of, and its publication. Errors: as StatePolicy::Finish.
  absl::StatusOr<engine::StepResult> Update(Communicator* communicator,
                                            absl::Span<const Slice> reduced, int64_t step,
                                            RunRecord* record);
  // Returns what of it can be done when the generation has ended: this worker is bound to the step.
  absl::StatusOr<engine::StepResult> BeginUpdate(Communicator* communicator,
                                                 absl::Span<const Slice> reduced, int64_t step,
                                                 RunRecord* record);
  // Writes down that the step is made.
  void Note(const engine::StepResult& result, int64_t step, int64_t generation, RunRecord* record);
  // Returns whether all leave after this step because one was asked to, and steps are left.
  bool DrainsEarly() const { return header_.drain && committed_step() < compiled_.total_steps; }
  // Saves and evaluates before they leave so.
  absl::Status Drain(Communicator* communicator, RunRecord* record);
  // Does what follows a step at its boundary: evaluation and checkpoint, if they are due.
  absl::Status AtBoundary(Communicator* communicator, RunRecord* record);
  // All members hold the same, if it is to be looked at after this step.
  absl::Status VerifyReplicas(Communicator* communicator);
  // Tells the world of the step that the state is after.
  void NoteCommitted(const engine::StepResult& result);
  // Says of the first of such steps in a row that no sample of it had a target.
  void TellOfTargets(int64_t step, const engine::StepResult& result);
  // Does what the job wants done about a step that is not finite.
  absl::Status CheckFinite(int64_t step, const engine::StepResult& result) const;
  // Returns whether `every`, counted in steps or epochs, comes after this step.
  bool FallsOn(const Every& every, int64_t step) const;
  bool EvalDue(int64_t step) const;
  absl::Status Resume(Communicator* communicator, const Generation& generation,
                      const std::string& run_dir);
  // What was the best by another metric than the job's is none: in the state, and in resumed_. Of
  // other data nothing was evaluated. Returns whether that made the state forget something.
  bool GoOnWithMetrics();
  // Returns whether this rank, `rank`, is the first of `holders` that took the state from resumed_
  // in the same generation; all of these agree on who is. Those who copied the state since know
  // nothing of the checkpoint. REQUIRES: the state is still that of resumed_.
  bool IsFirstResumed(const Generation& generation, const std::vector<int>& holders, int rank);
  // Puts the best weights that resumed_ knows of into the run's folder, where they are there.
  // Errors: as BringBest.
  absl::Status BringResumedBest(int rank, const std::string& run_dir);
  Checkpointer::Decided Decided() const;
  absl::Status Evaluate(Communicator* communicator, RunRecord* record);
  // Counts an evaluation for the best weights and the early stop.
  absl::Status Track(Communicator* communicator, const EvalResult& result, RunRecord* record);
  // Where this rank saves the weights of the best evaluation, of `step`; empty: it does not.
  std::string BestFile(const RunRecord* record, int64_t step) const;
  // Saves the weights as the best so far, where this rank does. When they cannot be saved, that is
  // said, and no others are left in their place in the run's folder.
  absl::Status WriteBest(RunRecord* record);
  // The disk's part of that: at `path`, which is the run's own or the checkpointer's, and among
  // those that the checkpointer, if there is one, keeps. Errors: they are not at `path`.
  absl::Status SaveBest(const std::string& path, bool of_run, const std::function<bool()>& go_on);
  // All ranks know the best weights by their hash, where one has saved them: whoever publishes the
  // next checkpoint need not have. Collective. Errors: those of the communicator.
  absl::Status AgreeOnBest(Communicator* communicator);
  // The run ends: where other ones have the place of the best weights, as a worker that stood still
  // may have written when it went on, they come back from beside the checkpoints. Says so when no
  // rank has them. Collective. Errors: those of the communicator.
  absl::Status SettleBest(Communicator* communicator, const RunRecord* record);
  // The disk's part of that, of the file at `path`; `of_run`: it is the run's own, which is to hold
  // them. Returns whether they are there, as far as that can be seen.
  bool HasBest(const std::string& path, bool of_run, const std::function<bool()>& go_on);

  const CompiledJob compiled_;
  const JobData* const data_;
  ProgressBoard* const board_;
  ControlLink* const link_;
  Clock* const clock_;
  StepWatch watch_;
  void* state_ = nullptr;
  std::unique_ptr<void, void (*)(void*)> arena_;
  std::unique_ptr<engine::Executor> executor_;
  std::unique_ptr<StepVector> vector_;
  std::unique_ptr<StatePolicy> policy_;
  std::unique_ptr<PartialSums> sums_;
  std::vector<ElementRange> parts_;  // of the vector, from the plan's buckets
  int64_t rounded_ = 0;              // TreeReduceArgs::rounded
  std::unique_ptr<StepProfiler> profiler_;
  std::unique_ptr<data::Loader> loader_;                // its threads use the profiler
  std::optional<engine::LockedFields> locked_batches_;  // all that it makes
  std::optional<absl::StatusOr<data::Batch>> ahead_;    // that StageNext has taken from it
  std::unique_ptr<Evaluator> evaluator_;
  std::vector<engine::GradientSlice> gradient_slices_;
  StepHeader::Contents header_;
  std::optional<EvalResult> eval_;
  std::vector<const void*> micro_fields_;
  std::vector<const void*> ahead_fields_;
  std::unique_ptr<Interpreter> interpreter_;
  const double* loss_scale_ = nullptr;  // in the state, with an interpreter
  RunRecord* notes_ = nullptr;
  FaultInjector* faults_ = nullptr;
  Checkpointer* checkpointer_ = nullptr;
  const ResumeSource* resume_source_ = nullptr;
  // The best weights that this rank knows of.
  struct BestWeights {
    std::string path;    // where this rank has saved them; empty: it has not
    int64_t step = 0;    // 0: none are known
    std::string sha256;  // of the file; empty: not known
  };
  BestWeights best_;
  std::string
      restored_;  // the checkpoint that this rank has read the state from, which it still is
  std::optional<Restored> resumed_;  // the checkpoint that the job went on from
  // The incarnations that took the state from it with this one, as far as they have been there with
  // their state since.
  std::vector<std::string> resumed_by_;
  std::function<void()> on_mark_;
  int64_t evaluated_step_ = 0;
  bool evaluate_first_ = false;
  bool no_targets_ = false;  // the newest step had none
  double train_seconds_ = 0;
  int64_t steps_timed_ = 0;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_TRAINER_H_
