// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/departures.h"

#include <algorithm>

#include "coordinator/core/command.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/nodes.h"

namespace lockstep::coordinator {
namespace {

// With fewer members everybody holds everything.
constexpr int kMembersWithParts = 3;

bool OnHostOf(const Worker& worker, const Worker& other) {
  return worker.host == other.host || worker.node_id == other.node_id;
}

// Returns whether workers of the job are of a build from before peers had versions. In a generation
// of fewer than the minimum, such a one begins a step, and dies as it has no memory for it.
bool AnyTakesAStep(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.worker && slot.worker->ready && slot.worker->ready->peer_protocol() == 0;
  });
}

}  // namespace

int LeastMembers(const Job& job) {
  const int least = job.least_workers();
  if (!job.drain || IsCommand(job) || !AnyHolder(job) || AnyTakesAStep(job)) return least;
  return job.spec().train().zero_stage() == 0 || least < kMembersWithParts ? 1 : least;
}

std::vector<Worker*> HeldBack(const Job& job, const std::vector<Worker*>& staying,
                              const std::vector<Worker*>& leaving) {
  const int members = job.generation.message.members_size();
  if (IsCommand(job) || job.spec().train().zero_stage() == 0 || members < kMembersWithParts ||
      leaving.empty()) {
    return {};
  }
  std::vector<const Worker*> living(leaving.begin(), leaving.end());
  for (const Worker* worker : staying) {
    if (IsMember(job, *worker)) living.push_back(worker);
  }
  if (static_cast<int>(living.size()) < members) return leaving;
  const Worker& first = *leaving.front();
  const bool elsewhere = std::any_of(living.begin(), living.end(), [&](const Worker* worker) {
    return !OnHostOf(*worker, first);
  });
  std::vector<Worker*> held;
  for (Worker* worker : leaving) {
    const bool goes = worker == &first ||
                      (elsewhere && worker->host == first.host && worker->node_id == first.node_id);
    if (!goes) held.push_back(worker);
  }
  return held;
}

void RetireUnseen(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (slot.vacant() || !slot.worker->leaving()) continue;
    const Worker& worker = *slot.worker;
    if (NodeInSight(context.state, worker, context.now)) continue;
    const auto node = context.state.nodes.find(worker.node_id);
    absl::Time since = worker.since;
    if (node != context.state.nodes.end()) since = std::max(since, node->second.last_contact);
    if (context.now - since <= SilenceLimit(context, job, worker)) continue;
    Retire(context, job, slot, /*fault=*/0);
    context.schedule = true;
    context.touched_jobs.insert(job.id);
  }
}

}  // namespace lockstep::coordinator
