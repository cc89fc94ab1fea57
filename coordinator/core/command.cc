// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/command.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "job/meaning/defaults.h"

namespace lockstep::coordinator {

absl::Duration CommandGrace(const Job& job) {
  return IsCommand(job) ? job::CommandGrace(job.spec()) : absl::ZeroDuration();
}

absl::Duration SilenceLimit(const Context& context, const Job& job, const Worker& worker) {
  const absl::Duration detection = FailureDetection(job);
  if (!IsCommand(job) || NodeInSight(context.state, worker, context.now)) return detection;
  return std::max(detection, job::kCommandLease + job::kCommandLeaseMargin);
}

bool AwaitsRanks(const Context& context, const Job& job) {
  // Who was lost with its host has ended there by itself (SilenceLimit).
  const auto may_run = [&](const Worker& worker) {
    if (worker.gone() || worker.node_lost) return false;
    const auto node = context.state.nodes.find(worker.node_id);
    if (node == context.state.nodes.end()) return false;
    // Its keeper may have been heard of after its agent.
    const absl::Time last_word =
        std::max({node->second.last_contact, worker.last_heard, job.forgiven});
    return InSight(context.state, node->second, context.now) ||
           context.now < last_word + job::kCommandLease + job::kCommandLeaseMargin;
  };
  const bool any_left = std::any_of(job.former.begin(), job.former.end(), may_run);
  if (any_left) return true;
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant() || slot.unplaced()) return false;
    const Worker& worker = *slot.worker;
    const bool counts = slot.works() || (worker.serves() && IsMember(job, worker));
    return counts && !(StandsBetween(job, worker) && !worker.dead() && !Failed(worker));
  });
}

bool AnyRankRuns(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant()) return false;
    const Worker& worker = *slot.worker;
    return IsMember(job, worker) && !worker.dead() && !worker.failed && !worker.finished &&
           !StandsBetween(job, worker);
  });
}

bool AllFinished(const Job& job) {
  const auto& members = job.generation.message.members();
  return !members.empty() && std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const Worker* worker = FindWorker(job, member.incarnation());
    return worker != nullptr && worker->finished.has_value();
  });
}

std::string HowToStop(const Job& job) {
  if (!IsCommand(job)) return "the workers finish the step, save and leave";
  return absl::StrCat("the ranks get SIGTERM, and SIGKILL after ", DurationText(CommandGrace(job)));
}

void EndDraining(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (slot.vacant() || !Failed(*slot.worker)) continue;
    slot.worker->finished.emplace().set_drained(true);
  }
  if (HasActiveGeneration(job)) return;
  if (job.preempted && !job.timed_out) return BeginEnding(context, job, PENDING, *job.drain, 0);
  constexpr int kCancelled = 130, kTimedOut = 124;
  BeginEnding(context, job, job.timed_out ? FAILED : CANCELLED, *job.drain,
              job.timed_out ? kTimedOut : kCancelled);
  if (job.ending) job.ending->decided = true;
}

}  // namespace lockstep::coordinator
