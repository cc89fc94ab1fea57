// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/returns.h"

#include <algorithm>
#include <set>
#include <string>

#include "coordinator/core/failures.h"
#include "coordinator/core/nodes.h"

namespace lockstep::coordinator {
namespace {

// Returns whether the member has said on its newest connection where it stands.
bool HasGivenAccount(const Worker& worker) {
  return worker.ready || worker.finished || Failed(worker) || worker.beats >= kBeatsOfAccount;
}

bool IsEndAwaited(const Context& context, const Worker& worker) {
  if (!worker.serves() || worker.end_announced == absl::InfinitePast()) return false;
  const auto node = context.state.nodes.find(worker.node_id);
  if (node == context.state.nodes.end() || node->second.session == 0) return false;
  return context.now < SettledAt(context, worker.end_announced);
}

}  // namespace

absl::Time SettledAt(const Context& context, absl::Time began) {
  return context.state.pauses.End(began, context.state.options.settle);
}

void NoteAnnouncedEnds(Context& context, const Node& node, const AgentHello& hello) {
  if (hello.ended().empty()) return;
  const std::set<std::string> ended(hello.ended().begin(), hello.ended().end());
  for (const std::string& id : JobsOn(node)) {
    Job* const job = FindJob(context.state, id);
    if (job == nullptr) continue;
    for (Slot& slot : job->slots) {
      if (!slot.worker || slot.worker->node_id != node.id) continue;
      if (ended.contains(slot.worker->incarnation)) slot.worker->end_announced = context.now;
    }
  }
}

bool AwaitsEnds(const Context& context, const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && !slot.aside() && IsEndAwaited(context, *slot.worker);
  });
}

bool AwaitsAccounts(const Context& context, const Job& job) {
  if (AwaitsEnds(context, job)) return true;
  if (context.now >= job.forgiven) return false;
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && IsMember(job, *slot.worker) && !HasGivenAccount(*slot.worker);
  });
}

}  // namespace lockstep::coordinator
