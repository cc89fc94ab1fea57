// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/health.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/failures.h"

namespace lockstep::coordinator {
namespace {

// Ticks come at least this often while a job runs, so a longer gap is the coordinator's own.
constexpr absl::Duration kLongestTick = absl::Milliseconds(250);
constexpr absl::Duration kPause = absl::Seconds(2);

absl::Duration MedianStep(const Worker& worker) {
  if (worker.step_times.empty()) return absl::ZeroDuration();
  std::vector<absl::Duration> times = worker.step_times;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

bool Watched(const Worker& worker) {
  return !worker.dead() && !worker.finished && worker.last_heard != absl::InfinitePast();
}

bool HasActiveGeneration(const Job& job) {
  return job.generation.message.generation() != 0 && !job.generation.aborted;
}

void CheckSilence(Context& context, Job& job) {
  const absl::Duration limit = FailureDetection(job);
  Worker* silent = nullptr;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (!Watched(worker) || context.now - worker.last_heard <= limit) continue;
    if (silent == nullptr || worker.last_heard < silent->last_heard) silent = &worker;
  }
  if (silent != nullptr)
    Judge(context, job, *silent, absl::StrCat("no heartbeat for ", Say(limit)));
}

// When one worker stands still the others soon wait for it, so the one that stopped first is meant,
// and nobody is judged while a worker is half-way to being silent.
void CheckStandstill(Context& context, Job& job) {
  if (!HasActiveGeneration(job)) return;
  const absl::Duration detection = FailureDetection(job);
  Worker* hung = nullptr;
  absl::Duration hung_limit;
  for (Slot& slot : job.slots) {
    Worker& worker = slot.worker;
    if (!Watched(worker)) continue;
    if (context.now - worker.last_heard > detection / 2) return;
    if (worker.progress.step() == 0) continue;
    const absl::Duration limit = std::max(detection, 10 * MedianStep(worker));
    if (context.now - worker.progress_moved <= limit) continue;
    if (hung == nullptr || worker.progress_moved < hung->progress_moved) {
      hung = &worker;
      hung_limit = limit;
    }
  }
  if (hung != nullptr)
    Judge(context, job, *hung, absl::StrCat("no progress for ", Say(hung_limit)));
}

void CheckStart(Context& context, Job& job) {
  if (job.stepped || context.now < job.started + StartTimeout(job)) return;
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

void CheckHealth(Context& context, Job& job) {
  if (job.final() || job.state == PENDING) return;
  if (!job.ending) {
    CheckSilence(context, job);
    CheckStandstill(context, job);
    CheckStart(context, job);
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

void ForgiveTime(State& state, absl::Time now) {
  for (auto& [id, node] : state.nodes) node.last_contact = now;
  for (auto& [id, job] : state.jobs) {
    if (job.final()) continue;
    if (job.suspected != absl::InfiniteFuture()) job.suspected = now;
    if (job.ending) {
      job.ending->since = now;
      job.ending->deadline = now + state.options.settle;
    }
    for (Slot& slot : job.slots) {
      if (slot.worker.last_heard == absl::InfinitePast()) continue;
      slot.worker.last_heard = now;
      slot.worker.progress_moved = now;
    }
  }
}

}  // namespace lockstep::coordinator
