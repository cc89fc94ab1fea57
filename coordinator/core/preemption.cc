// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/preemption.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/command.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/files.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/open_faults.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/run_time.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/standby.h"
#include "job/meaning/defaults.h"

namespace lockstep::coordinator {
namespace {

// Returns whether workers of the job have something to do before they leave, once they run it.
bool Saves(const Job& job) { return IsCommand(job) || !job.spec().checkpoint().dir().empty(); }

// Returns whether its workers have something to do before they leave. Those that are still on their
// way would have to begin for that.
bool LeavesByItself(const Job& job) { return Saves(job) && AnyHolder(job); }

// Processes that could not be heard of when the job was stopped are ended when their nodes are
// back.
void PutAside(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    job.lives = std::max(job.lives, slot.lives);
    if (!slot.worker || slot.unplaced()) continue;
    Worker& worker = *slot.worker;
    NoteLeft(worker, job);
    if (worker.session != 0) context.state.worker_sessions.erase(worker.session);
    worker.session = 0;
    worker.fault = 0;
    context.wish_nodes.push_back(worker.node_id);
    if (!worker.gone()) job.former.push_back(std::move(worker));
  }
}

void Requeue(Context& context, Job& job) {
  const std::string reason = job.ending->reason;
  NameFaults(context, job, /*now=*/true);
  job.open_faults.clear();
  EndRun(job, context.now);
  PutAside(context, job);
  EraseWorkerRows(context, job);
  job.slots.clear();
  job.generation.aborted = true;
  job.generation.abort_reason = reason;
  job.generation.aborted_at = context.now;
  job.generation.regroup.reset();
  if (job.preempted) {
    job.ready_since = context.now;
    ++job.preemptions;
  }
  job.preempted.reset();
  job.drain.reset();
  job.ending.reset();
  job.stepped = false;
  job.suspected = absl::InfiniteFuture();
  job.starts_again_at = absl::InfinitePast();
  job.target_workers = 0;
  job.stall.reset();
  job.straggler = StragglerWatch{};
  job.out_of_sight = false;
  job.silences.clear();
  job.silent_generations.clear();
  job.reach_tries = 0;
  job.reach_text.clear();
  job.ask = AskOf(job);
  context.schedule = true;
  SetState(context, job, PENDING, reason);
}

bool IsOnItsWayOut(const Job& job) {
  return job.preempted || job.drain || job.ending || job.final();
}

// Its workers leave by themselves, and it waits again.
void LetSave(Context& context, Job& job, const std::string& why) {
  job.preempted = Preempted{why, context.now};
  job.drain = absl::StrCat(why, "; ", HowToStop(job));
  SetState(context, job, DRAINING, *job.drain);
}

}  // namespace

void StopFor(Context& context, Job& job, const Job& by) {
  if (IsOnItsWayOut(job)) return;
  const std::string why =
      absl::StrCat("stops for job ", by.id, " of priority ", by.spec().priority());
  if (!LeavesByItself(job)) {
    job.preempted = Preempted{why, context.now};
    const bool loses = job.generation.message.generation() != 0 && !Saves(job);
    BeginEnding(context, job, PENDING,
                absl::StrCat("was stopped for job ", by.id,
                             loses ? ", and begins anew, as it has no checkpoint section" : ""),
                0, /*kill=*/true);
    return;
  }
  LetSave(context, job, why);
}

void StopToSave(Context& context, Job& job) {
  if (IsOnItsWayOut(job) || !LeavesByItself(job)) return;
  LetSave(context, job, "stops, as the agents of its nodes leave");
}

void LendFor(Context& context, Job& job, const std::vector<int>& places, const Job& by) {
  for (const int place : places) {
    Slot& slot = job.slots[static_cast<size_t>(place)];
    slot.wanted = false;
    slot.lent = true;
    if (slot.worker && slot.worker->serves() && !IsMember(job, *slot.worker)) {
      slot.worker->phase = Worker::Phase::kLeaving;
      slot.worker->since = context.now;
    }
  }
  context.touched_jobs.insert(job.id);
  AppendNotice(context, job,
               absl::StrCat("lets ", Count(static_cast<int64_t>(places.size()), "worker"),
                            " go for job ", by.id, " of priority ", by.spec().priority(),
                            "; they come back when there is room"));
}

void TakeLentBack(Context& context, Job& job) {
  if (job.drain || job.ending || job.final()) return;
  for (Slot& slot : job.slots) {
    if (!slot.lent || slot.worker) continue;  // who is there has not left yet
    if (slot.standby && !MayStartSpare(context.state, job)) continue;
    if (FindRoom(context, job, /*may_wait=*/true) == nullptr) return;  // nor for the next one
    slot.wanted = true;
    StartLife(context, job, slot);
    slot.lent = false;
  }
}

void CheckPreempted(Context& context, Job& job) {
  if (!job.preempted || context.now < job.preempted->since + job::LeaveGrace(job.spec())) return;
  BeginEnding(context, job, PENDING,
              absl::StrCat(job.preempted->reason, "; killed after its grace"), 0, /*kill=*/true);
}

void MaybeRequeue(Context& context, Job& job) {
  const auto busy = [&](const Worker& worker) {
    return !worker.gone() && NodeInSight(context.state, worker, context.now);
  };
  const bool waits = std::any_of(job.slots.begin(), job.slots.end(),
                                 [&](const Slot& slot) {
                                   return slot.worker && !slot.unplaced() && busy(*slot.worker);
                                 }) ||
                     std::any_of(job.former.begin(), job.former.end(), busy);
  if (!waits && !context.state.held_since) return Requeue(context, job);
  Ending& ending = *job.ending;
  if (ending.kill || context.state.held_since) return;
  if (context.now < ending.since + context.state.options.leave) return;
  ending.kill = true;
  ending.kill_serial = context.state.serial;
  for (const Slot& slot : job.slots) {
    if (slot.worker) context.wish_nodes.push_back(slot.worker->node_id);
  }
}

}  // namespace lockstep::coordinator
