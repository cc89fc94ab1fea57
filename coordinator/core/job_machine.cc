// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/job_machine.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/already_so.h"
#include "common/check.h"
#include "common/status.h"
#include "coordinator/core/access.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/assignment_size.h"
#include "coordinator/core/command.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/handover.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/open_faults.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/questions.h"
#include "coordinator/core/queue_requests.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/reachability.h"
#include "coordinator/core/run_time.h"
#include "coordinator/core/standby.h"
#include "coordinator/core/submission.h"
#include "coordinator/core/trained.h"
#include "job/meaning/defaults.h"

namespace lockstep::coordinator {
namespace {

constexpr int kExitCancelled = 130;
// As of timeout(1).
constexpr int kExitTimedOut = 124;
// Returns how far the job had come, of what its workers have said: rank 0 may have been the last to
// say it.
const Progress& NewestProgress(const Job& job) {
  const Progress* newest = &job.progress;
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || slot.aside() || !IsMember(job, *slot.worker)) continue;
    if (slot.worker->progress.step() > newest->step()) newest = &slot.worker->progress;
  }
  return *newest;
}

// Peak memory by rank and what the workers reported about the run.
void FillResult(const Job& job, JobResult& result) {
  for (const Slot& slot : job.slots) {
    if (slot.aside()) continue;
    if (slot.vacant()) {
      result.add_peak_rss_bytes(slot.last_peak_rss_bytes);
      continue;
    }
    const Worker& worker = *slot.worker;
    result.add_peak_rss_bytes(worker.peak_rss_bytes());
    if (!worker.finished) continue;
    const WorkerFinished& finished = *worker.finished;
    // The worker that was there longest saw most of it.
    if (result.steps() == 0 || finished.train_seconds() > result.train_seconds()) {
      result.set_steps(finished.steps());
      result.set_epochs(finished.epochs());
      result.set_train_seconds(finished.train_seconds());
      result.set_samples_per_second(finished.samples_per_second());
    }
    if (!result.has_eval() && finished.has_eval()) *result.mutable_eval() = finished.eval();
    if (result.model_path().empty()) {
      result.set_model_path(finished.model_path());
      result.set_model_sha256(finished.model_sha256());
    }
  }
  if (result.steps() == 0) {
    result.set_steps(job.progress.step());
    result.set_epochs(job.progress.epoch());
    result.set_train_seconds(job.progress.train_seconds());
    result.set_samples_per_second(job.progress.samples_per_second());
  }
  result.set_train_seconds(std::max(result.train_seconds(), TrainedSeconds(job)));
  if (!result.has_eval() && job.eval) *result.mutable_eval() = *job.eval;
}

void EndJob(Context& context, Job& job) {
  const Ending ending = *job.ending;
  JobResult& result = job.result;
  result.set_state(ending.target);
  result.set_exit_code(ending.exit_code);
  NameFaults(context, job, /*now=*/true);
  job.progress = NewestProgress(job);
  FillResult(job, result);
  result.set_generations(job.generations);
  result.set_workers(job.generation.message.members_size() > 0
                         ? job.generation.message.members_size()
                         : static_cast<int>(job.slots.size()));
  for (const Fault& fault : job.faults) *result.add_faults() = fault;
  const bool waits = job.started == absl::InfinitePast();
  const bool ran = job.ran > absl::ZeroDuration();
  const absl::Time start = !waits ? job.started : ran ? context.now : job.submitted;
  result.set_wall_seconds(absl::ToDoubleSeconds(job.ran + (context.now - start)));
  job.ended = context.now;
  context.schedule = true;
  context.state.look_at_dependencies = true;
  CountEnd(context, job);
  SetState(context, job, ending.target, ending.reason);
}

// The result is there and every other member has finished, or is missed no more.
bool IsDone(const Job& job) {
  if (!HasActiveGeneration(job) || !ResultIsThere(job)) return false;
  const auto& members = job.generation.message.members();
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const Worker* worker = FindWorker(job, member.incarnation());
    return worker == nullptr || worker->finished || Failed(*worker);
  });
}

std::string TimeLimitText(const Job& job) {
  return absl::StrCat("the time limit of ", DurationText(job::TimeLimit(job.spec())), " is over");
}

// Returns whether the job has done nothing since it began, or began again: what it had saved by
// then it has.
bool HasNothingToSave(const Job& job) { return !job.stepped && !AnyHolder(job); }

// Drains the job when its time is over, and kills it when it does not leave within the grace. Of
// workers that are out of sight nobody knows whether they run: that is seen when they are back, or
// are lost.
void CheckTimeLimit(Context& context, Job& job) {
  NoteWait(job, context.now);
  const absl::Duration over = RanFor(job, context.now) - job::TimeLimit(job.spec());
  if (over < absl::ZeroDuration() || job.out_of_sight) return;
  if ((HasActiveGeneration(job) || AnyHolder(job)) && !job.drain) {
    job.timed_out = true;
    job.drain = absl::StrCat(TimeLimitText(job), "; ", HowToStop(job));
    job.drained_since = context.now;
    SetState(context, job, DRAINING, *job.drain);
    context.touched_jobs.insert(job.id);
    return;
  }
  const bool nothing_to_save = HasNothingToSave(job);
  const absl::Time told = std::max(context.now - over, job.drained_since);
  if (!nothing_to_save && context.now < told + job::LeaveGrace(job.spec())) return;
  BeginEnding(context, job, FAILED,
              absl::StrCat(TimeLimitText(job), !nothing_to_save ? "; killed after its grace"
                                               : job.preemptions > 0
                                                   ? " before it went on; nothing to save"
                                                   : " before the first step; nothing to save"),
              kExitTimedOut, /*kill=*/true);
}

std::string NewestCheckpoint(const Job& job) {
  if (!job.checkpoint) return "";
  return absl::StrCat("; the newest checkpoint is that of step ", job.checkpoint->step());
}

// Returns whether the state after the job's last step is in no checkpoint, as its last save failed
// or was refused. Of a job that has had none nothing is known: it may have begun with another's.
bool IsUnsaved(const Job& job, int64_t steps) {
  return job.checkpoint && job.checkpoint->step() < steps;
}

// The job is to save and leave, and no process of it is there that could, as no node has room for
// one. It does not wait for a node to do so.
void CheckDrain(Context& context, Job& job) {
  if (!job.drain) return;
  const bool anybody = std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && !slot.unplaced() && !slot.worker->gone() &&
           !slot.worker->starts_later(context.now) &&
           !(slot.aside() && Failed(*slot.worker));  // whom nobody replaces any more
  });
  if (anybody) return;
  if (job.preempted && !job.timed_out) {
    return BeginEnding(context, job, PENDING,
                       absl::StrCat(job.preempted->reason, ": no worker is left that could save; ",
                                    "goes on from its newest checkpoint when there is room"),
                       0);
  }
  BeginEnding(context, job, job.timed_out ? FAILED : CANCELLED,
              absl::StrCat(job.timed_out ? TimeLimitText(job) : "cancelled",
                           ": no worker is left that could save", NewestCheckpoint(job)),
              job.timed_out ? kExitTimedOut : kExitCancelled);
  job.ending->decided = true;
}

void BeginFinishCommand(Context& context, Job& job) {
  const bool drained = std::any_of(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.worker && slot.worker->finished && slot.worker->finished->drained();
  });
  if (!drained) {
    const int ranks = job.generation.message.members_size();
    return BeginEnding(context, job, SUCCEEDED,
                       absl::StrCat("the command has succeeded on ", Count(ranks, "rank")), 0);
  }
  if (job.preempted && !job.timed_out) {
    return BeginEnding(context, job, PENDING,
                       absl::StrCat(job.preempted->reason,
                                    ": all ranks have ended; they start anew when there is room"),
                       0);
  }
  if (!job.timed_out) {
    return BeginEnding(context, job, CANCELLED, "stopped: all ranks have ended", kExitCancelled);
  }
  BeginEnding(context, job, FAILED, absl::StrCat(TimeLimitText(job), ": all ranks have ended"),
              kExitTimedOut);
  job.ending->decided = true;
}

void BeginFinish(Context& context, Job& job) {
  if (IsCommand(job)) return BeginFinishCommand(context, job);
  bool drained = false;
  int64_t steps = 0, total = 0;
  std::string model;
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || !slot.worker->finished) continue;
    const WorkerFinished& finished = *slot.worker->finished;
    drained |= finished.drained();
    steps = std::max<int64_t>(steps, finished.steps());
    total = std::max<int64_t>(total, finished.total_steps());
    if (model.empty()) model = finished.model_path();
  }
  const bool unsaved = drained && IsUnsaved(job, steps);
  const std::string at =
      absl::StrCat("drained at step ", steps, unsaved ? NewestCheckpoint(job) : "");
  const std::string saved = model.empty() ? "" : absl::StrCat("; model saved at ", model);
  if (drained && job.preempted && !job.timed_out) {
    BeginEnding(context, job, PENDING,
                absl::StrCat(job.preempted->reason, ": ", at, unsaved ? "; it" : ";",
                             " goes on from there when there is room"),
                0);
  } else if (drained && job.timed_out) {
    BeginEnding(context, job, FAILED, absl::StrCat(TimeLimitText(job), ": ", at, saved),
                kExitTimedOut);
    job.ending->decided = true;
  } else if (drained) {
    BeginEnding(context, job, CANCELLED, absl::StrCat(at, saved), kExitCancelled);
  } else if (steps < total) {
    BeginEnding(
        context, job, SUCCEEDED,
        absl::StrCat("stopped early after step ", steps, " of ", total, " (train.early_stop)"), 0);
  } else {
    BeginEnding(context, job, SUCCEEDED, absl::StrCat("all ", Count(steps, "step"), " done"), 0);
  }
}

void AdvanceEnding(Context& context, Job& job) {
  Ending& ending = *job.ending;
  if (ending.target == PENDING) return MaybeRequeue(context, job);
  if (ending.target == FAILED) UpdateKill(context, job);
  const bool waited = context.now >= ending.deadline && !context.state.held_since;
  if (!AllGone(job) && !waited) return;
  if (ending.target == FAILED) {
    if (!waited && AwaitsLastWords(context, job)) return;
    ConcludeFailure(context, job);
  }
  EndJob(context, job);
}

}  // namespace

absl::Status Submit(Context& context, const Submitted& event) {
  State& state = context.state;
  const SubmitJobRequest& request = event.request;
  if (absl::Status may =
          CheckOwner("Coordinator/SubmitJob", request.by(), request.user(), "the job");
      !may.ok()) {
    return may;
  }
  const std::string name = RequestName(request);
  if (const auto known = state.job_of_request.find(name); known != state.job_of_request.end()) {
    context.effects.submitted.set_job_id(known->second);
    context.effects.submitted.set_run_dir(state.jobs.at(known->second).run_dir);
    return absl::OkStatus();
  }
  LS_RETURN_IF_ERROR(CheckSubmission(request));
  if (const std::string why = WhyTooLargeToAssign(state, request); !why.empty()) {
    return absl::InvalidArgumentError(why);
  }
  LS_CHECK(state.jobs.count(event.job_id) == 0) << "job id " << event.job_id << " is taken";
  Job asked;
  asked.id = event.job_id;
  asked.request = request;
  if (absl::Status status = TakeQueueRequest(state, asked); !status.ok()) return status;
  Job& job = state.jobs[event.job_id] = std::move(asked);
  if (!name.empty()) state.job_of_request[name] = job.id;
  job.submit_order = ++state.submits;
  job.submitted = job.ready_since = context.now;
  job.ask = AskOf(job);
  job.run_dir = absl::StrCat("runs/", request.spec().name(), "-", event.job_id);
  context.effects.new_jobs.push_back(job.id);
  context.effects.submitted.set_job_id(job.id);
  context.effects.submitted.set_run_dir(job.run_dir);
  context.schedule = true;
  SetState(context, job, PENDING, "accepted");
  return absl::OkStatus();
}

namespace {

// It was to wait again, and is to end.
void DoNotRequeue(Job& job) {
  const bool preempted = job.preempted.has_value();
  job.preempted.reset();
  if (!job.ending || job.ending->target != PENDING) return;
  job.ending->target = CANCELLED;
  job.ending->reason = preempted ? "cancelled while it stopped for another job"
                                 : "cancelled before its first step; nothing to save";
  job.ending->exit_code = kExitCancelled;
  job.ending->decided = true;
}

}  // namespace

absl::Status Cancel(Context& context, const CancelRequested& event) {
  const absl::StatusOr<std::string> id =
      FindJobFor(context.state, event.job_id, "Coordinator/CancelJob", event.by);
  if (!id.ok()) return id.status();
  Job* const job = FindJob(context.state, *id);
  if (job->final()) {
    const std::string why = absl::StrCat("job ", job->id, " has already ended: ", job->reason);
    return job->state == CANCELLED ? AlreadySoError(why) : absl::FailedPreconditionError(why);
  }
  DoNotRequeue(*job);
  // One that was preempted has saved what it has.
  const bool never_ran = job->generation.message.generation() == 0;
  if (event.kill || HasNothingToSave(*job) || job->state == PENDING) {
    const std::string reason = event.kill  ? "cancelled: killed as asked"
                               : never_ran ? "cancelled before its first step; nothing to save"
                                           : "cancelled while it waited to go on";
    BeginEnding(context, *job, CANCELLED, reason, kExitCancelled, /*kill=*/true);
  } else if (!job->drain && !job->ending) {
    job->drain = absl::StrCat("cancelled: ", HowToStop(*job));
    SetState(context, *job, DRAINING, *job->drain);
  }
  context.touched_jobs.insert(job->id);
  return absl::OkStatus();
}

void SetState(Context& context, Job& job, JobState state, const std::string& reason) {
  LS_CHECK(!job.final() || state == job.state) << "job " << job.id << " has ended already";
  context.touched_jobs.insert(job.id);
  if (job.state == state && job.reason == reason) return;
  job.state = state;
  job.reason = reason;
  NoteBegun(context.state, job);
  JobEvent event;
  *event.mutable_state() = StatusOf(job);
  AppendEvent(context, job, std::move(event));
}

void BeginEnding(Context& context, Job& job, JobState target, const std::string& reason,
                 int exit_code, bool kill) {
  if (job.final() || job.ending) return;
  Ending ending;
  ending.target = target;
  ending.reason = reason;
  ending.exit_code = exit_code;
  ending.since = context.now;
  ending.deadline = context.now + context.state.options.settle;
  if (!kill) ending.deadline += CommandGrace(job);
  ending.kill = kill;
  ending.decided = kill;
  if (kill) ending.kill_serial = context.state.serial;
  job.ending = ending;
  context.touched_jobs.insert(job.id);
  if (target == FAILED) AbortCurrentGeneration(context, job, reason);
}

void Advance(Context& context, Job& job) {
  if (job.state == PENDING) {
    std::erase_if(job.former, [](const Worker& worker) { return worker.gone(); });
    if (job.ending) EndJob(context, job);
    return;
  }
  if (job.final()) return;
  if (!job.ending) CheckTimeLimit(context, job);
  if (!job.ending) CheckPreempted(context, job);
  if (!job.ending) DecideCuts(context, job);
  if (!job.ending) EndHearsay(context, job);
  if (!job.ending) Heal(context, job);
  if (!job.ending) CheckDrain(context, job);
  if (!job.ending) KeepStandbys(context, job);
  if (!job.ending) LeaveDrainedNodes(context, job);
  if (!job.ending) MaybeFormGeneration(context, job);
  if (!job.ending && IsDone(job)) BeginFinish(context, job);
  if (job.ending) AdvanceEnding(context, job);
}

JobStatus StatusOf(const Job& job) {
  JobStatus status;
  status.set_job_id(job.id);
  status.set_name(job.spec().name());
  status.set_user(job.request.user());
  status.set_state(job.state);
  status.set_reason(job.reason);
  status.set_generation(job.generation.message.generation());
  status.set_workers(job.state == PENDING ? 0 : job.generation.message.members_size());
  status.set_wanted_workers(job.target_workers > 0 ? job.target_workers : job.wanted_workers());
  *status.mutable_progress() = job.progress;
  *status.mutable_submitted() = ToProto(job.submitted);
  if (job.started != absl::InfinitePast()) *status.mutable_started() = ToProto(job.started);
  if (job.ended != absl::InfinitePast()) *status.mutable_ended() = ToProto(job.ended);
  status.set_run_dir(job.run_dir);
  status.set_restarts(job.restarts);
  status.set_standbys(ReadyStandbys(job));
  status.set_wanted_standbys(job.spec().resources().standby());
  if (job.stall && job.stall->said) status.set_stall(job.stall->text);
  status.set_straggler(job.straggler.text);
  if (job.final()) *status.mutable_result() = job.result;
  return status;
}

}  // namespace lockstep::coordinator
