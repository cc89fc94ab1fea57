// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/healing.h"

#include <signal.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/command.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/files.h"
#include "coordinator/core/first_start.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/handover.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/open_faults.h"
#include "coordinator/core/returns.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/standby.h"

namespace lockstep::coordinator {
namespace {

// Of a node with other data the span doubles so often: a look there costs little, and whoever mends
// it need not wait for long.
constexpr int kOtherDataDoublings = 2;

// Some other host has ended it, or its user: no sign that it would end so again.
bool IsAccident(const Worker& worker) {
  return worker.exited &&
         (worker.exited->signal() == SIGKILL || worker.exited->signal() == SIGTERM);
}

// Before the first step the cause decides, so it is waited for.
bool CauseIsKnown(const Context& context, const Worker& worker) {
  if (worker.gone() || worker.failed || worker.verdict_serial != 0) return true;
  if (context.state.held_since) return false;
  return context.now >= SettledAt(context, worker.failed_at);
}

// Before the first step: whether some failed worker may still say how it ended. Which of several
// failures was the first is only known with all of them.
bool AwaitsCauses(Context& context, Job& job) {
  if (job.stepped || MaxRestarts(job) == 0) return false;
  bool awaits = false;
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || slot.aside()) continue;
    const Worker& worker = *slot.worker;
    if (!Failed(worker)) continue;
    if (IsForGood(worker)) return false;
    if (CauseIsKnown(context, worker)) continue;
    awaits = true;
    if (IsMember(job, worker)) AbortCurrentGeneration(context, job, SayFailed(worker));
  }
  return awaits;
}

// Returns the fault that the failure of the place's worker is a part of; null: none yet. What fails
// together is one failure: the members until the next generation, as those of a start, and others
// that were there when it began, right after that. A replacement that fails is another.
OpenFault* FaultOf(const Context& context, Job& job, const Slot& slot) {
  const Worker& worker = *slot.worker;
  const bool starts = slot.lives == job.lives + 1 && !HasActiveGeneration(job);
  const bool pauses = MayStartLater(worker) && context.now < job.starts_again_at;
  const bool together = IsMember(job, worker) || starts || pauses;
  for (OpenFault& fault : job.open_faults) {
    if (fault.next_generation != 0) continue;
    if (together) return &fault;
    if (worker.since < fault.began && context.now < SettledAt(context, fault.began)) return &fault;
  }
  return nullptr;
}

void End(Context& context, Job& job, const Worker& worker, const std::string& note) {
  BeginEnding(context, job, FAILED, absl::StrCat("rank ", worker.slot, " failed: ", Cause(worker)),
              1);
  if (job.ending) job.ending->note = note;
}

// Returns whether others go on with the job's state when this worker is gone.
bool OthersHold(const Job& job, const Worker& worker) {
  if (!job.stepped) return false;
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant()) return false;
    const Worker& other = *slot.worker;
    return &other != &worker && IsMember(job, other) && !other.dead() && !Failed(other);
  });
}

// Of a job of several hosts that has not stepped, or not since it was stopped, and has no
// generation: whether a worker on another host than this one's is such a one.
bool AnyElsewhere(const Job& job, const Worker& worker, bool (*is_one)(const Worker&)) {
  if (HasActiveGeneration(job) || job.stepped) return false;
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.works() && slot.worker && !slot.unplaced() &&
           slot.worker->node_id != worker.node_id && !Failed(*slot.worker) && is_one(*slot.worker);
  });
}

// Returns whether another node than this worker's may have the job's data as they were: one where a
// worker is about to tell, unless others have told of it often enough, or one of which nothing is
// known. One that gets no work now, or was not heard of lately, may be away for good, and counts
// where the job was.
bool AnyOtherNode(const Context& context, const Job& job, const Worker& worker) {
  const auto is_to_tell = [&](const Slot& slot) {
    if (!slot.works() || !slot.worker || slot.unplaced() || !slot.worker->serves()) return false;
    if (Failed(*slot.worker) || slot.worker->node_id == worker.node_id) return false;
    const auto told = job.excluded.find(slot.worker->node_id);
    return told == job.excluded.end() || !told->second.other_data ||
           told->second.times <= kOtherDataDoublings;
  };
  if (std::any_of(job.slots.begin(), job.slots.end(), is_to_tell)) return true;
  const auto& nodes = context.state.nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const auto& entry) {
    const auto& [id, node] = entry;
    if (id == worker.node_id || HadOtherData(job, id) || !IsFor(job, node)) return false;
    const bool away = context.now - node.last_contact > context.state.options.node_lost_after;
    return (WhyNoWork(node, context.now).empty() && !away) || job.left_nodes.count(id) > 0;
  });
}

// Returns whether workers of the build that this one is not are on another node.
bool OthersUnderstandEachOther(const Job& job, const Worker& worker) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.works() && slot.worker && slot.worker->node_id != worker.node_id &&
           slot.worker->ready && !slot.worker->dead() && !Failed(*slot.worker);
  });
}

// Returns whether the failure, which would come again on that node, costs the job only the node:
// one that is no member yet has nothing that the others lack. What a member meets is the job's own,
// and so is what all hosts of a job that begins meet: a file that is nowhere.
bool CostsTheNode(const Context& context, const Job& job, const Worker& worker) {
  if ((!IsForGood(worker) && !MayStartLater(worker)) || IsMember(job, worker)) return false;
  // Only what the run has saved or others have opened can say so; the run is not at fault. Without
  // anybody who holds the state, and another node to try, there is nothing to wait for.
  if (HasOtherData(worker) && !worker.refused && job.generation.message.generation() != 0) {
    return AnyHolder(job) || AnyOtherNode(context, job, worker);
  }
  if (worker.other_build) return OthersUnderstandEachOther(job, worker);
  return OthersHold(job, worker) ||
         AnyElsewhere(job, worker, [](const Worker& other) { return other.ready.has_value(); });
}

// Returns whether some failed worker's cause may be its host's alone, which the other hosts will
// show.
bool AwaitsOtherHosts(const Context& context, const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant() || slot.aside()) return false;
    const Worker& worker = *slot.worker;
    if (!Failed(worker) || !IsForGood(worker) || CostsTheNode(context, job, worker)) {
      return false;
    }
    return AnyElsewhere(job, worker, [](const Worker& other) { return !other.ready.has_value(); });
  });
}

// Returns whether the worker's agent leaves, and ends it.
bool IsStopping(const State& state, const Worker& worker) {
  const auto node = state.nodes.find(worker.node_id);
  return node != state.nodes.end() && node->second.stopping;
}

// Returns whether a command could not be run for what the host lacked then.
bool LackedSomething(const Job& job, const Worker& worker) {
  return IsCommand(job) && worker.failed &&
         worker.failed->code() == static_cast<int>(absl::StatusCode::kUnavailable);
}

// The same end twice before the first step comes again. Remembers the first one.
bool IsPoison(Job& job, const Slot& slot, bool node_lost) {
  const Worker& worker = *slot.worker;
  if (job.stepped || IsAccident(worker) || LackedSomething(job, worker) || node_lost) return false;
  const std::string cause = Cause(worker);
  const int64_t lives = slot.lives - job.lives;
  if (lives > 1 && job.first_cause == cause) return true;
  if (lives == 1 || job.first_cause.empty()) job.first_cause = cause;
  return false;
}

// Somebody for the place of a worker that was retired: a standby, a new life, or nobody when the
// place is not wanted. Says which.
std::string Refill(Context& context, Job& job, Slot& slot) {
  if (Slot* relief = FindRelief(job, slot)) {
    relief->relieves = -1;
    slot.wanted = false;
    return "the one that was to relieve it takes over";
  }
  // The only worker stays wanted until the one that relieves it has the state, and is one too many
  // then.
  const auto works =
      std::count_if(job.slots.begin(), job.slots.end(), [](const Slot& s) { return s.works(); });
  if (slot.works() && works > job.target_workers) slot.wanted = false;
  if (slot.wanted && TakeOver(context, job, slot)) return "a standby takes over";
  if (!slot.wanted) {
    context.schedule = true;  // its user may have more now
    return "it was to leave";
  }
  StartLife(context, job, slot);
  if (slot.unplaced()) return "its replacement waits for a node";
  return IsCommand(job) ? "all ranks begin again" : "its replacement starts";
}

// The places of the failed workers, the first failure first.
std::vector<Slot*> FailedSlots(Job& job) {
  std::vector<Slot*> slots;
  std::vector<const Worker*> workers;
  for (Slot& slot : job.slots) {
    if (slot.vacant() || slot.aside() || !Failed(*slot.worker)) continue;
    slots.push_back(&slot);
    workers.push_back(&*slot.worker);
  }
  if (slots.size() < 2) return slots;
  const int first = NameFault(job, workers).rank();
  std::stable_partition(slots.begin(), slots.end(),
                        [first](const Slot* slot) { return slot->worker->slot == first; });
  return slots;
}

// What hinders a start for the second time in a row may be over in a moment, and no sooner: without
// a pause a lack of processes or memory for less than a second would use up all restarts, on one
// node or on all in turn. Each pause is twice as long. The next life has its place meanwhile, which
// no other job gets: on another node that has room, else on the same.
void StartLater(Context& context, Job& job, const Worker& worker) {
  if (job.restarts < 2) return;
  if (context.now >= job.starts_again_at) {
    const Options& options = context.state.options;
    const int64_t doublings = std::min<int64_t>(job.restarts - 2, 16);
    const absl::Duration span =
        std::min(options.exclude_most, options.start_again * (int64_t{1} << doublings));
    job.starts_again_at = context.now + span;
    const std::string failed = SayFailed(worker);
    AppendNotice(context, job, absl::StrCat(failed, "; is started again in ", DurationText(span)));
    if (job.state == STARTING) {
      SetState(context, job, STARTING, absl::StrCat(failed, "; is started again after a pause"));
    }
  }
  Exclusion& exclusion = job.excluded[worker.node_id];
  if (exclusion.until > job.starts_again_at) return;  // for more than this
  exclusion.reason = Cause(worker);
  exclusion.until = job.starts_again_at;
  if (FindRoom(context, job, /*may_wait=*/false) == nullptr) exclusion.until = context.now;
}

// One failed worker. Returns whether the job goes on.
bool HealOne(Context& context, Job& job, Slot& slot) {
  const Worker& worker = *slot.worker;
  const bool member = IsMember(job, worker);
  if (CostsTheNode(context, job, worker)) {
    Exclude(context, job, worker);
    Retire(context, job, slot, /*fault=*/0);
    Refill(context, job, slot);
    return true;
  }
  if (TryElsewhere(context, job, worker)) return false;
  // A node that is lost, or that leaves, says nothing about the job, and costs no restart.
  const bool node_lost = worker.node_lost || IsStopping(context.state, worker);
  if ((MaxRestarts(job) == 0 && !node_lost) || IsForGood(worker)) {
    End(context, job, worker, SayWhereElse(context.state, job, worker));
    return false;
  }
  const bool later = MayStartLater(worker);
  if (!later && IsPoison(job, slot, node_lost)) {
    End(context, job, worker, "it ended so before the first step once before");
    return false;
  }
  OpenFault* fault = FaultOf(context, job, slot);
  if (fault == nullptr) {
    if (!node_lost && !SpendRestart(job)) {
      End(context, job, worker,
          absl::StrCat("that was failure ", job.restarts,
                       IsCommand(job) ? " of the command" : " without a step between them",
                       " (restart.max_restarts: ", MaxRestarts(job), ")"));
      return false;
    }
    fault = &BeginFault(context, job, worker);
  } else {
    // The first member of it: the others went on until now.
    if (member && HasActiveGeneration(job)) fault->committed = NewestCommitted(job);
    if (fault->place > 0) AddVictim(job, *fault, worker.slot);
  }
  fault->failed = std::min(fault->failed, worker.failed_at);
  const std::string failed = SayFailed(worker);
  if (member) AbortCurrentGeneration(context, job, failed);
  if (later) StartLater(context, job, worker);
  Retire(context, job, slot, fault->number);
  const std::string next = Refill(context, job, slot);
  if (member && (job.state == RUNNING || job.out_of_sight)) {
    SetState(context, job, RECOVERING, absl::StrCat(failed, "; ", next));
  }
  return true;
}

// Returns whether some member is out of sight with its node: what became of it is known when the
// node is back or lost, and a lost node costs no restart.
bool AnyOutOfSight(const Context& context, const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant() || !IsMember(job, *slot.worker) || Failed(*slot.worker)) return false;
    const auto node = context.state.nodes.find(slot.worker->node_id);
    return node == context.state.nodes.end() || !InSight(context.state, node->second, context.now);
  });
}

// Who had finished in a generation that was aborted, and is dead, cannot be called back for the
// rest. It is missed from now on, after what ended the generation.
void TakeBackFinished(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (slot.vacant() || !slot.worker->finished || !slot.worker->dead()) continue;
    slot.worker->finished.reset();
    slot.worker->died_serial = context.state.serial;
    slot.worker->died_order = 0;
  }
}

}  // namespace

void Retire(Context& context, Job& job, Slot& slot, int64_t fault) {
  Worker& worker = *slot.worker;
  if (worker.session != 0) {
    ToWorker away;
    away.session = worker.session;
    away.command.mutable_exit()->set_reason("the job goes on without this worker");
    away.command.mutable_exit()->set_code(1);
    away.close = true;
    context.effects.to_workers.push_back(std::move(away));
    context.state.worker_sessions.erase(worker.session);
    worker.session = 0;
  }
  NoteLeft(worker, job);
  worker.fault = fault;
  worker.ready.reset();
  context.wish_nodes.push_back(worker.node_id);
  job.former.push_back(std::move(worker));
  slot.worker.reset();
  slot.last_peak_rss_bytes = 0;
}

bool SpendRestart(Job& job) {
  // What workers say of their progress is not kept over a restart of the coordinator.
  const int64_t saved = job.checkpoint ? job.checkpoint->step() : 0;
  const int64_t newest = std::max<int64_t>(NewestCommitted(job), saved);
  if (newest > job.restart_step && job.restart_step >= 0) job.restarts = 0;
  job.restart_step = std::max<int64_t>(newest, 0);
  return ++job.restarts <= MaxRestarts(job);
}

absl::Duration ExcludeNode(Context& context, Job& job, const std::string& node_id,
                           const std::string& reason, bool other_data) {
  if (IsExcluded(job, node_id, context.now)) return absl::ZeroDuration();
  const Options& options = context.state.options;
  Exclusion& exclusion = job.excluded[node_id];
  exclusion.reason = reason;
  exclusion.other_data = other_data;
  const int doublings = std::min(exclusion.times, other_data ? kOtherDataDoublings : 16);
  exclusion.times = doublings + 1;
  const absl::Duration span =
      std::min(options.exclude_most, options.exclude_for * (int64_t{1} << doublings));
  exclusion.until = context.now + span;
  return span;
}

void Exclude(Context& context, Job& job, const Worker& worker) {
  if (worker.node_id.empty()) return;
  const bool other_data = HasOtherData(worker);
  const absl::Duration span = ExcludeNode(context, job, worker.node_id, Cause(worker), other_data);
  if (span == absl::ZeroDuration()) return;
  std::string text = absl::StrCat(SayFailed(worker), "; for ", DurationText(span),
                                  " no worker of this job is started on ", worker.host);
  if (worker.other_build) return AppendNotice(context, job, text);  // the node is well
  if (other_data) {
    absl::StrAppend(&text, ", and then only when no other node has room");
  } else {
    NoteNodeFailure(
        context, worker.node_id,
        absl::StrCat("rank ", worker.slot, " of job ", job.id, " could not begin there"), job.id);
  }
  AppendNotice(context, job, text);
}

void StartLife(Context& context, Job& job, Slot& slot) {
  Worker& worker = slot.worker.emplace();
  worker.incarnation = absl::StrCat(job.id, ".", &slot - job.slots.data(), ".", ++slot.lives);
  worker.slot = static_cast<int>(&slot - job.slots.data());
  worker.since = context.now;
  PlaceLife(context, job, slot);
  context.touched_jobs.insert(job.id);
}

void Heal(Context& context, Job& job) {
  if (IsCommand(job) && job.drain) return EndDraining(context, job);
  BlameNodes(context, job);
  EndNewcomersFaults(context, job, /*now=*/false);
  const int members = job.generation.message.members_size();
  const bool done = members > 0 && !job.generation.aborted && ResultIsThere(job);
  if (job.generation.aborted) TakeBackFinished(context, job);
  const bool missed = !done && AnyFailed(job);  // else the result is safe, or nobody is
  if (missed && (AwaitsAccounts(context, job) || AwaitsCauses(context, job))) return;
  if (missed && AwaitsOtherHosts(context, job)) return;
  if (missed) {
    for (Slot* slot : FailedSlots(job)) {
      if (!HealOne(context, job, *slot)) return;
    }
  }
  for (const Worker& worker : job.former) {
    // It said why only after its agent had said that it died.
    if (worker.fault == 0 || !worker.failed || !IsForGood(worker)) continue;
    if (!CostsTheNode(context, job, worker)) return End(context, job, worker, "");
    Exclude(context, job, worker);
  }
  NameFaults(context, job, false);
  if (MaxRestarts(job) == 0 && !IsCommand(job) && Unfollowed(job) == nullptr &&
      !AnyOutOfSight(context, job) && context.now >= job.suspected + FailureDetection(job)) {
    BeginEnding(context, job, FAILED, "workers lost a peer", 1);
  }
}

}  // namespace lockstep::coordinator
