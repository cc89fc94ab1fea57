// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/scale.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/core/access.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/files.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/questions.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/quota.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/standby.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"

namespace lockstep::coordinator {
namespace {

absl::Status CheckScale(const Job& job, int workers) {
  if (job.final() || job.ending || job.drain) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id, " cannot be scaled: ", job.reason));
  }
  if (job.state == PENDING && job.preemptions == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id, " has not started: ", job.reason));
  }
  const int least = job::LeastWorkers(job.spec());
  const int allowed = std::min(job::MostWorkers(job.spec()), job::MostUsefulWorkers(job.spec()));
  const int most = std::min(allowed, kMaxWorkers);
  if (workers >= least && workers <= most) return absl::OkStatus();
  const std::string ask = absl::StrCat("job ", job.id, " cannot have ", workers, " workers: ");
  if (workers > job::MostUsefulWorkers(job.spec())) {
    return absl::InvalidArgumentError(
        absl::StrCat(ask, "it has ", Count(job.spec().train().shards(), "shard")));
  }
  if (workers > most && allowed > most) {
    return absl::InvalidArgumentError(absl::StrCat(ask, "a job has at most ", kMaxWorkers));
  }
  return absl::InvalidArgumentError(absl::StrCat(ask, "its file allows ", least, " to ", most,
                                                 " (elastic.min_workers, elastic.max_workers)"));
}

// Checks whether the user may have so many more workers of the job. Its spares that count already
// work for as many of them, or make room (AddPlace).
absl::Status CheckQuota(const Context& context, const Job& job, int more) {
  const auto spares = std::count_if(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.standby && HasProcess(slot);
  });
  const int besides = more - static_cast<int>(spares);
  if (besides <= 0) return absl::OkStatus();
  const std::string why = WhyNoMore(context.state, job, besides);
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id, " cannot have ", Count(more, "worker"), " more: ", why));
}

// Returns whether the job's workers have GPUs wherever it begins: on all nodes that it may use, of
// those that take work now if there are any.
bool BeginsOnGpus(const Context& context, const Job& job) {
  if (job.ask->gpus != Ask::Gpus::kWhereEnough) return job.ask->gpus == Ask::Gpus::kAlways;
  const auto on_all = [&](bool open) -> std::optional<bool> {
    std::optional<bool> all;
    for (const auto& [id, node] : context.state.nodes) {
      if (!IsFor(job, node)) continue;
      const NodeFacts facts = FactsOf(context.state, node, context.now);
      if (open && !facts.open) continue;
      all = all.value_or(true) && UsesGpus(*job.ask, facts.gpus);
    }
    return all;
  };
  const std::optional<bool> open = on_all(/*open=*/true);
  return open.has_value() ? *open : on_all(/*open=*/false).value_or(false);
}

// The same of a job that waits to begin again: with more it could never begin.
absl::Status CheckQuotaOfWaiting(const Context& context, const Job& job, int workers) {
  const QueueRules rules = RulesOf(context.state.options);
  const Quota& quota = QuotaOf(rules, job.request.user());
  const auto check = [&](int most, const char* what) -> absl::Status {
    if (most == 0 || workers <= most) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id, " cannot have ", Count(workers, "worker"), ": the quota of ",
                     job.request.user(), " is ", Count(most, what)));
  };
  LS_RETURN_IF_ERROR(check(quota.slots, "slot"));
  return BeginsOnGpus(context, job) ? check(quota.gpus, "GPU") : absl::OkStatus();
}

bool Holds(const Job& job, const Slot& slot) { return slot.worker && IsMember(job, *slot.worker); }

// A place whose worker was let go, and which the job has again when there is room: it counts as the
// job's.
bool ComesBack(const Slot& slot) { return slot.lent || slot.returns; }

// Places without the state go first, then the newest; before them those that nobody works on now.
void GiveUp(const Context& context, Job& job, int count) {
  for (Slot& slot : job.slots) {
    if (!ComesBack(slot) || slot.standby || count == 0) continue;
    slot.lent = slot.returns = false;
    --count;
  }
  std::vector<Slot*> wanted;
  for (Slot& slot : job.slots) {
    if (slot.works()) wanted.push_back(&slot);
  }
  std::stable_sort(wanted.begin(), wanted.end(), [&](const Slot* a, const Slot* b) {
    const bool a_holds = Holds(job, *a), b_holds = Holds(job, *b);
    return a_holds != b_holds ? b_holds : a > b;
  });
  count = std::min(count, static_cast<int>(wanted.size()));
  for (int i = 0; i < count; ++i) {
    Slot& slot = *wanted[static_cast<size_t>(i)];
    slot.wanted = false;
    if (slot.unplaced()) {
      slot.worker.reset();
    } else if (slot.worker && slot.worker->serves() && !IsMember(job, *slot.worker)) {
      slot.worker->phase = Worker::Phase::kLeaving;
      slot.worker->since = context.now;
    }
  }
}

// Gives a place up that counts for a spare, which could not work.
void GiveUpSpare(Context& context, Job& job) {
  const auto spare = std::find_if(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.standby && HasProcess(slot);
  });
  if (spare == job.slots.end()) return;
  spare->standby = spare->wanted = spare->lent = false;
  if (!spare->worker->leaving()) Retire(context, job, *spare, /*fault=*/0);
}

// Takes a place back that was given up, lets a spare work, or opens a new place; where its user may
// have no more a spare works, or the place of one is given up for it.
absl::Status AddPlace(Context& context, Job& job) {
  if (!WhyNoMore(context.state, job, 1).empty()) {
    if (Slot* spare = FindStandby(context, job)) {
      spare->standby = false;
      return absl::OkStatus();
    }
    GiveUpSpare(context, job);
  }
  for (Slot& slot : job.slots) {
    if (slot.wanted || ComesBack(slot)) continue;
    slot.wanted = true;
    if (slot.worker && !slot.worker->leaving()) return absl::OkStatus();  // it had not left yet
    if (slot.worker) NoteLeft(*slot.worker, job);
    if (slot.worker) job.former.push_back(*slot.worker);
    slot.lent = true;  // it can wait, as one that is to come back
    StartLife(context, job, slot);
    slot.lent = false;
    if (!slot.unplaced()) return absl::OkStatus();
    slot.wanted = false;
    slot.worker.reset();
    break;
  }
  if (Slot* spare = FindStandby(context, job)) {
    spare->standby = false;
    return absl::OkStatus();
  }
  Slot* slot = AddSlot(context, job, /*may_wait=*/true);
  if (slot == nullptr) {
    if (static_cast<int>(job.slots.size()) >= kMaxWorkers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a job has at most ", kMaxWorkers, " workers with its spares"));
    }
    if (FindRoom(context, job) != nullptr) {
      return absl::ResourceExhaustedError(
          "no connected node has a free slot but those that are kept for a job which waits");
    }
    const NodesBy by = context.state.options.nodes_by;
    const std::string starter = NodesStarter(by);
    return absl::ResourceExhaustedError(
        absl::StrCat("no connected node has a free slot",
                     starter.empty() ? "" : absl::StrCat("; start one with ", starter),
                     by == NodesBy::kJoin ? ", or join with more --slots" : ""));
  }
  StartLife(context, job, *slot);
  return absl::OkStatus();
}

// Adds so many places, or none: where there is not room for all of them the job, and what its
// workers are told, are as before.
absl::Status AddPlaces(Context& context, Job& job, int count) {
  std::vector<Slot> slots = job.slots;
  std::vector<Worker> former = job.former;
  std::set<std::string> left_nodes = job.left_nodes;
  const size_t told = context.effects.to_workers.size();
  for (int added = 0; added < count; ++added) {
    absl::Status status = AddPlace(context, job);
    if (status.ok()) continue;
    job.slots = std::move(slots);
    job.former = std::move(former);
    job.left_nodes = std::move(left_nodes);
    context.effects.to_workers.resize(told);
    for (const Slot& slot : job.slots) {
      if (!slot.worker || slot.worker->session == 0) continue;
      context.state.worker_sessions[slot.worker->session] = {job.id, slot.worker->incarnation};
    }
    if (added == 0) return status;
    return Annotate(status, absl::StrCat("there is room for ", added, " of the ", count,
                                         " more workers, so none is started"));
  }
  return absl::OkStatus();
}

// Of a job that was stopped for another and waits: it begins again with so many.
void ScaleWaiting(Context& context, Job& job, int workers) {
  const int before = job.wanted_workers();
  context.effects.scaled.set_workers_before(before);
  context.touched_jobs.insert(job.id);
  if (workers == before) return;
  job.scaled_to = workers;
  job.ask = AskOf(job);
  context.schedule = true;
  AppendNotice(
      context, job,
      absl::StrCat("scaled from ", Count(before, "worker"), " to ", workers, ", while it waits"));
}

}  // namespace

absl::Status Scale(Context& context, const ScaleRequested& event) {
  const absl::StatusOr<std::string> id =
      FindJobFor(context.state, event.job_id, "Coordinator/ScaleJob", event.by);
  if (!id.ok()) return id.status();
  Job* const job = FindJob(context.state, *id);
  if (absl::Status status = CheckScale(*job, event.workers); !status.ok()) return status;
  if (job->state == PENDING) {
    LS_RETURN_IF_ERROR(CheckQuotaOfWaiting(context, *job, event.workers));
    ScaleWaiting(context, *job, event.workers);
    return absl::OkStatus();
  }
  if (absl::Status status = CheckQuota(context, *job, event.workers - job->target_workers);
      !status.ok()) {
    return status;
  }
  context.effects.scaled.set_workers_before(job->target_workers);
  context.touched_jobs.insert(job->id);
  if (event.workers < job->target_workers) {
    GiveUp(context, *job, job->target_workers - event.workers);
  }
  if (event.workers == job->target_workers) return absl::OkStatus();
  LS_RETURN_IF_ERROR(AddPlaces(context, *job, event.workers - job->target_workers));
  AppendNotice(
      context, *job,
      absl::StrCat("scaled from ", Count(job->target_workers, "worker"), " to ", event.workers));
  job->scaled_to = job->target_workers = event.workers;
  return absl::OkStatus();
}

}  // namespace lockstep::coordinator
