// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/health.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/failures.h"

namespace lockstep::coordinator {
namespace {

// Ticks come every fraction of a second while a job runs, so a gap of this length is the
// coordinator's own.
constexpr absl::Duration kPause = absl::Seconds(2);

bool Watched(const Worker& worker) {
  return !worker.dead() && !worker.finished && worker.last_heard != absl::InfinitePast();
}

void CheckSilence(Context& context, Job& job) {
  const absl::Duration limit = FailureDetection(job);
  Worker* silent = nullptr;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (!Watched(worker) || context.now - worker.last_heard <= limit) continue;
    if (silent == nullptr || worker.last_heard < silent->last_heard) silent = &worker;
  }
  if (silent == nullptr) return;
  silent->failed_at = std::min(silent->failed_at, silent->last_heard);
  Judge(context, job, *silent, absl::StrCat("no heartbeat for ", Say(limit)));
}

// When one worker stands still the others soon wait for it, so one that waits for nobody is meant,
// of these the one that stopped first. Who waits is only meant when all wait; and nobody is judged
// while a worker is half-way to being silent. One limit holds for all: they do the same steps, and
// with one of its own a victim could be judged before the culprit.
void CheckStandstill(Context& context, Job& job) {
  if (!HasActiveGeneration(job) || !job.stepped) return;
  const absl::Duration detection = FailureDetection(job);
  std::vector<Worker*> members;
  absl::Duration limit = detection;
  bool all_wait = true;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (!Watched(worker)) continue;
    if (context.now - worker.last_heard > detection / 2) return;
    if (!IsMember(job, worker)) continue;
    limit = std::max(limit, 10 * MedianStep(worker));
    all_wait &= worker.waits;
    members.push_back(&worker);
  }
  Worker* hung = nullptr;
  for (Worker* worker : members) {
    const bool meant = all_wait || !worker->waits;
    if (!meant || context.now - worker->progress_moved <= limit) continue;
    if (hung == nullptr || worker->progress_moved < hung->progress_moved) hung = worker;
  }
  if (hung == nullptr) return;
  hung->failed_at = std::min(hung->failed_at, hung->progress_moved);
  Judge(context, job, *hung, absl::StrCat("no progress for ", Say(limit)));
}

// A survivor that does not leave an ended generation holds up all others.
void CheckLeaving(Context& context, Job& job) {
  if (!job.generation.aborted || MaxRestarts(job) == 0) return;
  const absl::Duration limit = FailureDetection(job);
  if (context.now < job.generation.aborted_at + limit) return;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (StandsBetween(job, worker) || worker.dead() || !IsMember(job, worker)) continue;
    Judge(context, job, worker,
          absl::StrCat("did not leave generation ", job.generation.message.generation(), " within ",
                       Say(limit)));
  }
}

// A worker that shall join a job that steps already.
void CheckJoining(Context& context, Job& job) {
  if (!job.stepped) return;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (worker.dead() || worker.ready || worker.left || IsMember(job, worker)) continue;
    if (context.now < worker.since + StartTimeout(job)) continue;
    Judge(context, job, worker,
          absl::StrCat("was not ready to train ", Say(StartTimeout(job)),
                       " after its start (start_timeout)"));
  }
}

void CheckStart(Context& context, Job& job) {
  const absl::Time begin = std::max(job.started, job.forgiven);
  if (job.stepped || context.now < begin + StartTimeout(job)) return;
  const bool formed = HasActiveGeneration(job);
  auto ready = [&](const Worker& worker) { return formed || worker.ready.has_value(); };
  Worker* late = nullptr;
  std::string what;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (worker.dead() || worker.finished) continue;
    if (late != nullptr && (ready(worker) || !ready(*late))) continue;
    late = &worker;
    what = ready(worker)    ? "has not done its first step"
           : worker.started ? "was not ready to train"
                            : "was not started by its agent";
  }
  if (late != nullptr) {
    Judge(context, job, *late,
          absl::StrCat(what, " ", Say(StartTimeout(job)), " after the start (start_timeout)"));
  }
}

void CheckNodes(Context& context, Job& job) {
  const absl::Duration limit = context.state.options.node_lost_after;
  for (Slot& slot : job.slots) {
    const auto node = context.state.nodes.find(slot.worker.node_id);
    if (node == context.state.nodes.end() || node->second.session != 0) continue;
    if (context.now - node->second.last_contact <= limit) continue;
    Judge(context, job, slot.worker,
          absl::StrCat("the agent on ", node->second.host, " has been out of reach for ",
                       Say(limit)));
    return;
  }
}

}  // namespace

absl::Duration MedianStep(const Worker& worker) {
  if (worker.step_times.empty()) return absl::ZeroDuration();
  std::vector<absl::Duration> times = worker.step_times;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void CheckHealth(Context& context, Job& job) {
  if (job.final() || job.state == PENDING) return;
  if (!job.ending) {
    CheckSilence(context, job);
    CheckStandstill(context, job);
    CheckStart(context, job);
    CheckLeaving(context, job);
    CheckJoining(context, job);
    CheckNodes(context, job);
  }
}

void ForgivePause(Context& context) {
  State& state = context.state;
  const bool paused =
      state.last_step != absl::InfinitePast() && context.now - state.last_step > kPause;
  state.last_step = context.now;
  if (paused) ForgiveTime(state, context.now);
}

void ForgiveTime(State& state, absl::Time then) {
  for (auto& [id, node] : state.nodes) node.last_contact = then;
  for (auto& [id, job] : state.jobs) {
    if (job.final()) continue;
    job.forgiven = then;
    if (job.suspected != absl::InfiniteFuture()) job.suspected = then;
    if (job.generation.aborted) job.generation.aborted_at = then;
    if (job.ending) {
      job.ending->since = then;
      job.ending->deadline = then + state.options.settle;
    }
    for (Slot& slot : job.slots) {
      slot.worker.since = then;
      if (slot.worker.last_heard == absl::InfinitePast()) continue;
      slot.worker.last_heard = then;
      slot.worker.progress_moved = then;
    }
  }
}

}  // namespace lockstep::coordinator
