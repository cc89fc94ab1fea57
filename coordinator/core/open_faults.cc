// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/open_faults.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/core/failures.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/returns.h"

namespace lockstep::coordinator {
namespace {

// Those that failed in it.
std::vector<const Worker*> FormerOf(const Job& job, const OpenFault& fault) {
  std::vector<const Worker*> failed;
  for (const Worker& worker : job.former) {
    if (worker.fault == fault.number) failed.push_back(&worker);
  }
  return failed;
}

// From the failure on.
double Cost(const OpenFault& fault, absl::Time until) {
  return std::max(0.0, absl::ToDoubleMilliseconds(until - fault.failed));
}

// What is told of it, as far as it is known.
void SetCosts(const OpenFault& fault, Fault& told) {
  told.set_steps_lost(fault.steps_lost);
  told.set_rendezvous_ms(fault.rendezvous_ms);
  told.set_restore_ms(fault.restore_ms);
  told.set_to_next_step_ms(std::max(0.0, fault.to_next_step_ms));
  told.set_replay_ms(std::max(0.0, fault.replay_ms));
}

// Until the first commit: who has the state last has brought it back. A generation that committed
// nothing counts with the one that follows.
void NoteRestored(const Job& job, const WorkerHeartbeat& heartbeat, absl::Time now,
                  OpenFault& fault) {
  if (heartbeat.has_since_restored()) {
    const absl::Time restored = now - FromProto(heartbeat.since_restored());
    fault.restore_ms = std::max(fault.restore_ms, Cost(fault, restored));
  }
  if (!heartbeat.has_since_first_commit()) return;
  const Generation& current = job.generation.message;
  if (heartbeat.generation() == current.generation() && current.start_step() == 0) {
    fault.steps_lost = std::max<int64_t>(0, fault.committed - heartbeat.resumed_step());
  }
  fault.to_next_step_ms = Cost(fault, now - FromProto(heartbeat.since_first_commit()));
  fault.restore_ms = std::min(fault.restore_ms, fault.to_next_step_ms);
}

// After it: what was lost is done again, and more, if there is more to do.
void NoteReplayed(const Progress& progress, absl::Time now, OpenFault& fault) {
  if (fault.replay_ms >= 0) return;
  const bool is_done = progress.total_steps() > 0 && progress.step() >= progress.total_steps();
  if (fault.steps_lost == 0) {
    fault.replay_ms = fault.to_next_step_ms;
  } else if (progress.step() > fault.committed || is_done) {
    fault.replay_ms = std::max(fault.to_next_step_ms, Cost(fault, now));
  }
}

// The fault gets its name: whom `failed`, those of it, make known.
void Name(Context& context, Job& job, const std::vector<const Worker*>& failed, OpenFault& fault) {
  Fault named = NameFault(job, failed);
  named.set_generation(fault.generation);
  named.set_detect_ms(Cost(fault, fault.began));
  SetCosts(fault, named);
  fault.place = AddFault(job, std::move(named));
  JobEvent event;
  *event.mutable_fault() = job.faults[fault.place - 1];
  AppendEvent(context, job, std::move(event));
}

// What is over and told, and the workers that no fault waits for any more.
void ForgetNamed(Job& job) {
  std::erase_if(job.open_faults,
                [](const OpenFault& fault) { return fault.place > 0 && fault.replay_ms >= 0; });
  std::erase_if(job.former, [&](const Worker& worker) {
    if (!worker.gone()) return false;
    return std::none_of(job.open_faults.begin(), job.open_faults.end(), [&](const OpenFault& f) {
      return f.number == worker.fault && f.place == 0;
    });
  });
}

}  // namespace

OpenFault* Unfollowed(Job& job) {
  for (OpenFault& fault : job.open_faults) {
    if (fault.next_generation == 0) return &fault;
  }
  return nullptr;
}

OpenFault& BeginFault(Context& context, Job& job, const Worker& worker) {
  OpenFault& fault = job.open_faults.emplace_back();
  fault.number = ++job.fault_number;
  fault.began = context.now;
  fault.failed = std::min(worker.failed_at, context.now);
  fault.generation = job.generation.message.generation();
  fault.committed = NewestCommitted(job);
  return fault;
}

void AddVictim(Job& job, const OpenFault& fault, int rank) {
  Fault& named = job.faults[fault.place - 1];
  const auto& victims = named.victims();
  if (named.rank() == rank || std::count(victims.begin(), victims.end(), rank) > 0) return;
  named.add_victims(rank);
  std::sort(named.mutable_victims()->begin(), named.mutable_victims()->end());
}

int64_t NewestCommitted(const Job& job) {
  int64_t newest = job.generation.message.start_step();
  const auto look = [&](const Worker& worker) {
    newest = std::max<int64_t>(newest, worker.progress.step());
    if (worker.ready) newest = std::max<int64_t>(newest, worker.ready->committed_step());
  };
  for (const Slot& slot : job.slots) {
    if (slot.worker) look(*slot.worker);
  }
  for (const Worker& worker : job.former) look(worker);
  return newest;
}

void EndNewcomersFaults(const Context& context, Job& job, bool now) {
  if (!HasActiveGeneration(job)) return;
  for (OpenFault& fault : job.open_faults) {
    if (fault.next_generation != 0) continue;
    if (!now && context.now < SettledAt(context, fault.began)) continue;
    fault.next_generation = fault.generation;
    fault.to_next_step_ms = fault.replay_ms = 0;
  }
}

void NoteGeneration(Context& context, Job& job) {
  const Generation& generation = job.generation.message;
  for (OpenFault& fault : job.open_faults) {
    if (fault.next_generation != 0) continue;
    fault.next_generation = generation.generation();
    fault.steps_lost = std::max<int64_t>(0, fault.committed - generation.start_step());
    fault.rendezvous_ms = Cost(fault, context.now);
    if (fault.place > 0) SetCosts(fault, job.faults[fault.place - 1]);
  }
}

void NoteRecovery(Job& job, const WorkerHeartbeat& heartbeat, absl::Time now) {
  for (OpenFault& fault : job.open_faults) {
    if (fault.next_generation == 0 || heartbeat.generation() < fault.next_generation) continue;
    if (fault.to_next_step_ms < 0) NoteRestored(job, heartbeat, now, fault);
    if (fault.to_next_step_ms >= 0) NoteReplayed(heartbeat.progress(), now, fault);
    if (fault.place > 0) SetCosts(fault, job.faults[fault.place - 1]);
  }
}

void NameLostRanks(Context& context, Job& job) {
  for (OpenFault& fault : job.open_faults) {
    if (fault.place > 0) continue;
    const std::vector<const Worker*> failed = FormerOf(job, fault);
    if (failed.empty()) continue;
    const Worker& first = Named(job, failed);
    // Those after it wait for it, so that the first one is told first.
    if (first.dead() || !StandsBetween(job, first)) break;
    Name(context, job, failed, fault);
  }
  ForgetNamed(job);
}

void NameFaults(Context& context, Job& job, bool now) {
  for (OpenFault& fault : job.open_faults) {
    if (fault.place > 0) continue;
    const std::vector<const Worker*> failed = FormerOf(job, fault);
    if (failed.empty()) continue;
    bool known = !AwaitsEnds(context, job);
    for (const Worker* worker : failed) known &= worker->gone();
    // It may be one whom only its peers lost so far: how it ended may be told after how they did.
    known &= Named(job, failed).gone();
    // Those after it wait for it, so that the first one is told first.
    if (!known && !now && context.now < SettledAt(context, fault.began)) break;
    Name(context, job, failed, fault);
  }
  ForgetNamed(job);
}

}  // namespace lockstep::coordinator
