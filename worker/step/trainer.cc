// SPDX-License-Identifier: Apache-2.0
#include "worker/step/trainer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/candidates.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/state/recovery.h"
#include "worker/step/eval_tracker.h"
#include "worker/step/non_finite_ranks.h"

namespace lockstep::worker {
namespace {

// Of what members do together when there is no coordinator any more: they save and leave.
constexpr absl::Duration kLimitAlone = absl::Hours(1);

}  // namespace

absl::Time Trainer::Deadline() const {
  return link_->coordinator_lost() ? clock_->Now() + kLimitAlone : absl::InfiniteFuture();
}

double Trainer::samples_per_second() const {
  if (train_seconds_ <= 0) return 0;
  return static_cast<double>(steps_timed_ * compiled_.job.train().global_batch()) / train_seconds_;
}

bool Trainer::FallsOn(const Every& every, int64_t step) const {
  if (every.steps > 0) return step % every.steps == 0;
  if (every.epochs == 0) return false;
  const int64_t epochs = compiled_.sampler->EpochsCompletedAfter(step);
  return epochs / every.epochs > compiled_.sampler->EpochsCompletedAfter(step - 1) / every.epochs;
}

absl::StatusOr<TrainOutcome> Trainer::RunGeneration(Communicator* communicator, ShardRange held,
                                                    RunRecord* record) {
  {
    const StepWatch::Scope loading(&watch_, IN_DATA_LOADER);  // what is being read is waited for
    loader_->Restart(committed_step(), held.begin, held.end);
  }
  ahead_.reset();
  communicator->PublishCommitted(committed_step());
  const Train& train = compiled_.job.train();
  header_ = {};
  if (checkpointer_ != nullptr) {
    checkpointer_->Enter(*communicator, committed_step(), std::exchange(restored_, ""),
                         resume_source_->copies);
    if (committed_step() > 0 && FallsOn(compiled_.save_every, committed_step())) {
      checkpointer_->NoteDue(committed_step());
    }
  }
  // The coordinator makes a generation of fewer than the job has at least only where it is to end:
  // no worker has memory for so large a share of a step, and none takes one. All know that alike.
  const bool leaves = communicator->world_size() < LeastWorkers(compiled_.job) &&
                      committed_step() < compiled_.total_steps;
  header_.drain = leaves;
  // The last generation may have ended between a commit and its evaluation, on some ranks.
  if (std::exchange(evaluate_first_, false) && !leaves) {
    LS_RETURN_IF_ERROR(Evaluate(communicator, record));
  } else if (committed_step() > 0 && executor_->tracking().best_step == committed_step()) {
    LS_RETURN_IF_ERROR(WriteBest(record));  // or before that was saved
  }
  LS_RETURN_IF_ERROR(AgreeOnBest(communicator));
  const bool on_cpu = compiled_.plan->spec().device == engine::DeviceKind::kCpu;
  if (record != nullptr && committed_step() == 0 && train.precision() == "tf32" && on_cpu) {
    LS_LOG_INFO << "precision tf32 is fp32 on this device: it has no such arithmetic";
  }
  board_->Enter(TRAINING);
  while (committed_step() < compiled_.total_steps && !header_.drain && !header_.regroup &&
         !StopsEarly(train, executor_->tracking())) {
    const absl::Time start = clock_->Now();
    LS_RETURN_IF_ERROR(Step(communicator, held, record));
    LS_RETURN_IF_ERROR(VerifyReplicas(communicator));
    train_seconds_ += absl::ToDoubleSeconds(clock_->Now() - start);
    ++steps_timed_;
    board_->train_seconds.store(train_seconds_, std::memory_order_relaxed);
    board_->samples_per_second.store(samples_per_second(), std::memory_order_relaxed);
    LS_RETURN_IF_ERROR(AtBoundary(communicator, record));
  }
  const bool early = StopsEarly(train, executor_->tracking());
  if (early && record != nullptr) {
    const engine::Tracking tracking = executor_->tracking();
    const std::string best = absl::StrCat("the best was that of step ", tracking.stop_step);
    LS_LOG_INFO << "stopped early after step " << committed_step() << ": no better "
                << train.early_stop().metric() << " for " << tracking.stop_count << " evaluations; "
                << (tracking.stop_step > 0 ? best : "none was a number");
  }
  LS_RETURN_IF_ERROR(policy_->Publish(communicator, Deadline()));
  TrainOutcome outcome;
  const bool done = early || committed_step() == compiled_.total_steps;
  outcome.drained = !done && header_.drain;
  outcome.regrouped = !done && !header_.drain;
  if (done) LS_RETURN_IF_ERROR(SettleBest(communicator, record));
  if (checkpointer_ != nullptr && !outcome.regrouped && (leaves || !DrainsEarly())) {
    if (outcome.drained) checkpointer_->Hurry();
    LS_RETURN_IF_ERROR(
        checkpointer_->Complete(communicator, committed_step(), Decided(), Deadline(), leaves));
  }
  return outcome;
}

// Whoever asks for it gives a grace, in which an evaluation may not end: the state is safe first.
// An evaluation that is due is not in that checkpoint, so whoever goes on from it makes it again.
absl::Status Trainer::Drain(Communicator* communicator, RunRecord* record) {
  if (checkpointer_ != nullptr) {
    LS_RETURN_IF_ERROR(policy_->Publish(communicator, Deadline()));
    checkpointer_->Hurry();
    LS_RETURN_IF_ERROR(
        checkpointer_->Complete(communicator, committed_step(), Decided(), Deadline()));
  }
  return evaluator_ == nullptr ? absl::OkStatus() : Evaluate(communicator, record);
}

absl::Status Trainer::AtBoundary(Communicator* communicator, RunRecord* record) {
  if (DrainsEarly()) return Drain(communicator, record);
  if (EvalDue(committed_step())) LS_RETURN_IF_ERROR(Evaluate(communicator, record));
  if (checkpointer_ == nullptr) return absl::OkStatus();
  const bool due = FallsOn(compiled_.save_every, committed_step());
  if (policy_->publishes() && (due || header_.save)) {
    LS_RETURN_IF_ERROR(policy_->Publish(communicator, Deadline()));
  }
  checkpointer_->AtBoundary(committed_step(), due, header_, Decided());
  return absl::OkStatus();
}

absl::Status Trainer::VerifyReplicas(Communicator* communicator) {
  if (!FallsOn(compiled_.verify_every, committed_step())) return absl::OkStatus();
  LS_RETURN_IF_ERROR(executor_->PublishState());
  return policy_->CheckReplicas(communicator, committed_step(), Deadline());
}

absl::Status Trainer::Step(Communicator* communicator, ShardRange held, RunRecord* record) {
  const int64_t step = committed_step() + 1;
  watch_.BeginStep(step, executor_.get());
  LS_RETURN_IF_ERROR(RunShards(communicator, held, step));
  LS_ASSIGN_OR_RETURN(const absl::Span<const Slice> reduced, Reduce(communicator, step));
  LS_RETURN_IF_ERROR(vector_->ReadHeader(reduced, &header_));
  LS_ASSIGN_OR_RETURN(const engine::StepResult result, Update(communicator, reduced, step, record));
  NoteCommitted(result);
  watch_.EndStep(step);
  if (record != nullptr) TellOfTargets(step, result);
  absl::Status finite = CheckFinite(step, result);
  // Of gradients on a device, or that others' results or new parameters have been put over, nothing
  // is known any more.
  const bool known = vector_->memory()->on_host() && policy_->wanted().empty() &&
                     communicator->abilities().results_with_owners;
  if (finite.ok() || !known) return finite;
  const bool own = GaveNonFinite(sums_->nodes(), compiled_.vector_count, reduced);
  return WithRanks(finite, own, communicator, Deadline());
}

absl::StatusOr<absl::Span<const Slice>> Trainer::Reduce(Communicator* communicator, int64_t step) {
  watch_.At(chaos::Place::kReduce, step);
  // After the reduction peers change what this rank's checkpoint may read of them.
  if (policy_->copies_read_peers()) WaitForCopy();
  const StepWatch::Scope part(&watch_, REDUCING, StepPhase::kReduce);
  LS_ASSIGN_OR_RETURN(const absl::Span<const Slice> reduced,
                      communicator->TreeReduce(ReductionOf(step, sums_->nodes()), Deadline()));
  LS_RETURN_IF_ERROR(policy_->ShareSums(communicator, step, GradientsIn(reduced), Deadline()));
  return reduced;
}

TreeReduceArgs Trainer::ReductionOf(int64_t step, absl::Span<const NodeBuffer> nodes) const {
  TreeReduceArgs args;
  args.nodes = nodes;
  args.count = compiled_.vector_count;
  args.result = sums_->first();
  args.step = step;
  args.parts = parts_;
  args.wanted = policy_->wanted();
  args.rounded = rounded_;
  return args;
}

absl::Span<const engine::GradientSlice> Trainer::GradientsIn(absl::Span<const Slice> reduced) {
  const int64_t gradients = compiled_.plan->gradient_count();
  gradient_slices_.clear();
  for (const Slice& slice : reduced) {
    if (slice.begin >= gradients) break;
    gradient_slices_.push_back({slice.begin, std::min(slice.end, gradients), slice.data});
  }
  return gradient_slices_;
}

absl::Status Trainer::BeginReducing(Communicator* communicator, int64_t step, int bucket) {
  const int64_t end = compiled_.plan->buckets()[static_cast<size_t>(bucket)].end;
  const auto part = std::find_if(parts_.begin(), parts_.end(),
                                 [end](const ElementRange& each) { return each.end == end; });
  if (part == parts_.end()) return absl::OkStatus();  // more of it comes
  LS_RETURN_IF_ERROR(sums_->PartDone(part->begin, part->end));
  const StepWatch::Scope reducing(&watch_, REDUCING);
  return communicator->BeginPart(ReductionOf(step, sums_->whole()), Deadline());
}

absl::Status Trainer::FinishStep(Communicator* last, const ReducedStep& reduced) {
  const int64_t step = begun_step() + 1;
  if (reduced.step != step) return absl::OkStatus();
  LS_RETURN_IF_ERROR(vector_->ReadHeader(reduced.slices, &header_));
  LS_ASSIGN_OR_RETURN(const engine::StepResult result,
                      BeginUpdate(last, reduced.slices, step, nullptr));
  if (committed_step() == step) NoteCommitted(result);
  watch_.At(committed_step() == step ? chaos::Place::kCommitted : chaos::Place::kBegun, step);
  return CheckFinite(step, result);
}

absl::Status Trainer::CatchUp(Communicator* last, int64_t start_step) {
  if (last == nullptr || begun_step() != start_step - 1) return absl::OkStatus();
  const auto reduced = last->NewestReduce();
  return reduced.has_value() ? FinishStep(last, *reduced) : absl::OkStatus();
}

absl::Status Trainer::JoinState(Communicator* communicator, const Generation& generation,
                                const std::string& run_dir, std::vector<int>* holders) {
  const int64_t start_step = generation.start_step();
  if (checkpointer_ != nullptr) checkpointer_->WaitForCopy();
  LS_RETURN_IF_ERROR(executor_->PublishState());
  if (begun_step() != start_step) watch_.At(chaos::Place::kJoin, start_step);
  StateAgreement agreement;
  agreement.evaluated_step = evaluated_step_;
  const absl::Status agreed = policy_->Agree(communicator, start_step, &agreement, Deadline());
  evaluated_step_ = agreement.evaluated_step;
  *holders = agreement.holders;
  LS_RETURN_IF_ERROR(agreed);
  board_->step.store(committed_step(), std::memory_order_relaxed);
  if (agreement.copied) {
    LS_LOG_INFO << "has the state after step " << start_step << " from the other members";
  }
  if (start_step == 0) {
    // What was evaluated of steps that are lost says nothing of those that are made again.
    evaluated_step_ = 0;
    eval_.reset();
    best_ = {};
    LS_RETURN_IF_ERROR(Resume(communicator, generation, run_dir));
  } else {
    evaluate_first_ = EvalDue(start_step) && evaluated_step_ < start_step;
    // Who was to bring them before the first step may have died over it. Those of this very step
    // are written from the state.
    const int64_t best_step = executor_->tracking().best_step;
    const bool just_resumed = resumed_.has_value() && resumed_->manifest.step == start_step &&
                              best_step == resumed_->manifest.best_step && best_step != start_step;
    if (just_resumed && IsFirstResumed(generation, *holders, communicator->rank())) {
      LS_RETURN_IF_ERROR(BringResumedBest(communicator->rank(), run_dir));
    }
  }
  board_->restored.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_relaxed);
  if (on_mark_ && (agreement.copied || committed_step() != start_step)) on_mark_();
  return absl::OkStatus();
}

absl::Status Trainer::Resume(Communicator* communicator, const Generation& generation,
                             const std::string& run_dir) {
  if (resume_source_ == nullptr) return absl::OkStatus();
  board_->Enter(LOADING);
  const auto held = policy_->held();
  resumed_.reset();
  LS_ASSIGN_OR_RETURN(resumed_, RestoreState(communicator, *resume_source_,
                                             {compiled_.plan.get(), executor_.get(), state_,
                                              held.has_value() ? &*held : nullptr},
                                             board_, clock_, Deadline()));
  if (!resumed_.has_value()) return absl::OkStatus();
  const int64_t step = committed_step();
  // With train.reproducible: false a run of fewer steps is taken too.
  if (step > compiled_.total_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint ", resumed_->path, " is of step ", step, ", and the run has ",
                     compiled_.total_steps, " steps: raise train.steps (or train.epochs), or take ",
                     InsteadOf(resumed_->manifest, *resume_source_)));
  }
  resumed_by_.clear();
  for (const Member& member : generation.members()) resumed_by_.push_back(member.incarnation());
  restored_ = resumed_->here ? resumed_->path : "";
  const bool forgot = GoOnWithMetrics();
  best_ = {"", resumed_->manifest.best_step, resumed_->manifest.best_sha256};
  evaluated_step_ = resumed_->manifest.evaluated_step;
  eval_ = EvaluationOf(resumed_->manifest);
  evaluate_first_ = EvalDue(step) && evaluated_step_ < step;
  board_->step.store(step, std::memory_order_relaxed);
  board_->epoch.store(compiled_.sampler->EpochsAfter(step), std::memory_order_relaxed);
  board_->resumed_step.store(step, std::memory_order_relaxed);
  if (communicator->rank() != 0) return absl::OkStatus();
  LS_LOG_INFO << "goes on after step " << step << " from the checkpoint " << resumed_->path;
  if (forgot && resumed_->evaluated_other) {
    LS_LOG_INFO << "train.data, eval.block or the files differ from those of the evaluations "
                   "before: best weights and the early stop begin anew";
  }
  if (resumed_->manifest.run == resume_source_->identity.run) {
    link_->TellCheckpoint(MarkOf(resumed_->manifest, resumed_->path));
  }
  return BringResumedBest(communicator->rank(), run_dir);
}

void Trainer::NoteFirstCommit() {
  board_->first_commit.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_release);
  LS_LOG_DEBUG << "first commit of the generation: step " << committed_step();
  if (on_mark_) on_mark_();
}

void Trainer::TellOfTargets(int64_t step, const engine::StepResult& result) {
  const bool none = result.finite && result.valid_targets == 0;
  if (std::exchange(no_targets_, none) || !none) return;
  LS_LOG_WARNING << "step " << step << ": no sample has a target; the step is skipped";
}

absl::Status Trainer::CheckFinite(int64_t step, const engine::StepResult& result) const {
  if (result.finite) return absl::OkStatus();
  const Train& train = compiled_.job.train();
  const bool gradient = result.nonfinite != engine::StepResult::kLoss &&
                        result.nonfinite != engine::StepResult::kStatistics;
  const std::string what = absl::StrCat("step ", step, ": ", gradient ? "the gradient of " : "",
                                        std::string(result.nonfinite), " is not finite");
  // While the scale is being found an overflow is its doing; at 1 there is no scale to blame.
  if (result.loss_scale > 1) {
    if (result.skipped_in_a_row == 1) {
      LS_LOG_INFO << what << " in fp16 at a loss scale of " << result.loss_scale
                  << "; the step is skipped and the scale lowered";
    }
    if (train.max_skips() == 0 || result.skipped_in_a_row < train.max_skips()) {
      return absl::OkStatus();
    }
  }
  if (train.on_nonfinite() == "fail") {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " (on_nonfinite: fail): lower the learning rate, warm up or clip"));
  }
  if (result.skipped_in_a_row == 1) {
    LS_LOG_WARNING << what << "; the step is skipped";
  }
  if (train.max_skips() == 0 || result.skipped_in_a_row < train.max_skips()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, "; ", result.skipped_in_a_row,
                   result.skipped_in_a_row == 1 ? " step was" : " steps in a row were",
                   " skipped (max_skips): lower the learning rate, warm up or clip"));
}

StepHeader::Wishes Trainer::Wishes(const Communicator& communicator) const {
  StepHeader::Wishes wishes;
  wishes.drain = link_->drain_requested();
  wishes.regroup = link_->regroup_requested(communicator.generation());
  if (checkpointer_ != nullptr) {
    wishes.save = checkpointer_->WantsSave();
    wishes.part = checkpointer_->part();
  }
  return wishes;
}

absl::Status Trainer::RunShards(Communicator* communicator, ShardRange held, int64_t step) {
  engine::Executor::Hooks hooks;
  // The commit rule: nobody writes gradients of a step while a member may still read the last ones.
  // Two pointers fit into a std::function: no step allocates.
  const std::pair<Communicator*, int64_t> last{communicator, step - 1};
  hooks.before_gradients = [this, &last]() -> absl::Status {
    LS_RETURN_IF_ERROR(StageNext());
    const PhaseTimer waiting(profiler_.get(), StepPhase::kCommitWait);
    return last.first->WaitCommitted(last.second, Deadline());
  };
  // A long step is seen to move on: each node counts. It is given up when the generation ends.
  hooks.cancelled = [this, communicator]() {
    board_->Moved();
    return communicator->aborted();
  };
  const StepHeader::Wishes wishes = Wishes(*communicator);
  sums_->Begin(held);
  for (int shard = held.begin; shard < held.end; ++shard) {
    std::optional<StepWatch::Scope> loading(std::in_place, &watch_, IN_DATA_LOADER,
                                            StepPhase::kDataWait);
    LS_ASSIGN_OR_RETURN(const data::Batch batch, ahead_.has_value()
                                                     ? *std::exchange(ahead_, std::nullopt)
                                                     : loader_->Next());
    loading.reset();
    LS_CHECK(batch.step == step - 1 && batch.shard == shard);
    const StepWatch::Scope computing(&watch_, COMPUTING);
    float* leaf = sums_->NextLeaf();
    const StepHeader::Wishes said = shard == held.begin ? wishes : StepHeader::Wishes{};
    const bool in_parts = shard + 1 == held.end && communicator->reduces_parts();
    // On a device it is written first, as later it would wait for what has been begun. In the
    // host's memory peers may still read the last step's there, as they may its gradients.
    const bool header_first = in_parts && !vector_->memory()->on_host();
    if (header_first) {
      LS_RETURN_IF_ERROR(vector_->WriteHeader(shard, batch.ids_hash, said, leaf));
    }
    if (in_parts) {
      hooks.bucket_ready = [this, &last](int bucket) {
        return BeginReducing(last.first, last.second + 1, bucket);
      };
    }
    LS_RETURN_IF_ERROR(RunShard(batch, leaf, hooks));
    if (!header_first) {
      LS_RETURN_IF_ERROR(vector_->WriteHeader(shard, batch.ids_hash, said, leaf));
    }
    LS_RETURN_IF_ERROR(sums_->LeafDone());
    board_->Moved();
  }
  return absl::OkStatus();
}

void Trainer::PointTo(const data::Batch& batch, int micro, std::vector<const void*>* fields) const {
  const int64_t micro_batch = compiled_.plan->spec().micro_batch;
  const std::vector<FieldSpec>& specs = compiled_.plan->spec().input.fields;
  fields->resize(specs.size());
  for (size_t f = 0; f < specs.size(); ++f) {
    (*fields)[f] = static_cast<const char*>(batch.fields[f]) +
                   micro * micro_batch * static_cast<int64_t>(specs[f].bytes());
  }
}

// An error, the end of the data too, is for who asks for that batch.
absl::Status Trainer::StageNext() {
  if (!executor_->stages_ahead() || ahead_.has_value()) return absl::OkStatus();
  {
    const StepWatch::Scope loading(&watch_, IN_DATA_LOADER, StepPhase::kDataWait);
    ahead_ = loader_->Next();
  }
  if (!ahead_->ok()) return absl::OkStatus();
  const data::Batch& batch = **ahead_;
  PointTo(batch, 0, &ahead_fields_);
  return executor_->StageAhead(batch.step + 1, batch.shard, 0, ahead_fields_);
}

absl::Status Trainer::RunShard(const data::Batch& batch, float* leaf,
                               const engine::Executor::Hooks& hooks) {
  const int64_t step = batch.step + 1;
  const absl::Time begin = faults_ == nullptr ? absl::InfinitePast() : clock_->Now();
  for (int micro = 0; micro < compiled_.plan->spec().accumulate; ++micro) {
    PointTo(batch, micro, &micro_fields_);
    if (interpreter_ != nullptr) interpreter_->Enter(step, batch.shard, micro, *loss_scale_);
    const PhaseTimer computing(profiler_.get(), StepPhase::kCompute);
    LS_RETURN_IF_ERROR(executor_->RunShard(step, batch.shard, micro, micro_fields_, leaf, hooks));
  }
  if (faults_ != nullptr) faults_->Slow(clock_, clock_->Now() - begin, hooks.cancelled);
  return absl::OkStatus();
}

absl::StatusOr<engine::StepResult> Trainer::Update(Communicator* communicator,
                                                   absl::Span<const Slice> reduced, int64_t step,
                                                   RunRecord* record) {
  const StepWatch::Scope part(&watch_, UPDATING, StepPhase::kUpdate);
  LS_ASSIGN_OR_RETURN(const engine::StepResult result,
                      BeginUpdate(communicator, reduced, step, record));
  if (begun_step() == committed_step()) return result;
  watch_.At(chaos::Place::kBegun, step);
  LS_RETURN_IF_ERROR(policy_->Finish(communicator, step, Deadline()));
  communicator->PublishCommitted(step);
  return result;
}

absl::StatusOr<engine::StepResult> Trainer::BeginUpdate(Communicator* communicator,
                                                        absl::Span<const Slice> reduced,
                                                        int64_t step, RunRecord* record) {
  watch_.At(chaos::Place::kReduced, step);
  if (checkpointer_ != nullptr) {
    const StepWatch::Scope copying(&watch_, COPYING_CHECKPOINT);
    checkpointer_->WaitForCopy();
  }
  LS_ASSIGN_OR_RETURN(const engine::StepResult result, policy_->Begin(step, GradientsIn(reduced)));
  if (committed_step() == step) communicator->PublishCommitted(step);
  // One that is half done is bound to be made: it is on record before its weights are there.
  if (RunRecord* const notes = notes_ != nullptr ? notes_ : record; notes != nullptr) {
    Note(result, step, communicator->generation(), notes);
  }
  return result;
}

void Trainer::Note(const engine::StepResult& result, int64_t step, int64_t generation,
                   RunRecord* record) {
  for (size_t shard = 0; shard < header_.ids_hash.size(); ++shard) {
    record->Ledger(step, static_cast<int>(shard), generation, header_.ids_hash[shard]);
  }
  const bool scaled = compiled_.plan->scales_loss();
  if (record->WantsStep(step) || (scaled && result.skipped)) {
    record->Step(step, compiled_.sampler->EpochsAfter(step), result.loss, result.learning_rate,
                 step * compiled_.job.train().global_batch(), scaled ? result.loss_scale : 0,
                 result.skipped);
  }
}

void Trainer::NoteCommitted(const engine::StepResult& result) {
  const int64_t step = committed_step();
  board_->step.store(step, std::memory_order_relaxed);
  board_->epoch.store(compiled_.sampler->EpochsAfter(step), std::memory_order_relaxed);
  board_->loss.store(result.loss, std::memory_order_relaxed);
  board_->learning_rate.store(result.learning_rate, std::memory_order_relaxed);
  board_->Moved();
  if (board_->first_commit.load(std::memory_order_relaxed) == 0) NoteFirstCommit();
}

}  // namespace lockstep::worker
