// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/standby.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/quota.h"
#include "coordinator/core/scheduler.h"

namespace lockstep::coordinator {
namespace {

// A spare that ends is started again so much after its last start.
constexpr absl::Duration kAgainAfter = absl::Seconds(10);
// Room for one that is lacked is looked for so often, and less often where many jobs run: a look
// goes over all of them, for their user's quota, and over all nodes.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kLookForEach = absl::Milliseconds(10);

// One that would end so again is given up, and with it the wish for any; for its node's data only
// that node.
void Replace(Context& context, Job& job, Slot& slot) {
  if (HasOtherData(*slot.worker)) {
    Exclude(context, job, *slot.worker);
    Retire(context, job, slot, /*fault=*/0);
    slot.node_id.clear();
    return;
  }
  if (IsForGood(*slot.worker)) {
    job.no_standby = true;
    AppendNotice(context, job,
                 absl::StrCat("the job goes on without a standby: ", Cause(*slot.worker)));
    Retire(context, job, slot, /*fault=*/0);
    slot.standby = slot.wanted = false;
    return;
  }
  if (context.now < slot.worker->since + kAgainAfter) return;
  Retire(context, job, slot, /*fault=*/0);
  if (MayStartSpare(context.state, job)) StartLife(context, job, slot);
}

// Returns whether no failure is being healed: a spare that starts takes time from those who heal
// it.
bool IsCalm(const Job& job) {
  return HasActiveGeneration(job) &&
         std::none_of(job.open_faults.begin(), job.open_faults.end(),
                      [](const OpenFault& fault) { return fault.to_next_step_ms < 0; });
}

// Spares work for the places whose workers wait for nodes with room. The next spares begin in those
// places, when there is room.
void WorkForUnplaced(const Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (!slot.works() || !slot.unplaced()) continue;
    if (!TakeOver(context, job, slot)) return;
    slot.worker.reset();
  }
}

// Returns whether the worker may be let into a generation; says why not, and leaves its node out
// for a while.
bool IsAdmissible(Context& context, Job& job, const Worker& worker) {
  if (!worker.ready) return true;
  bool other_data = false;
  const std::string why = WhyNotAdmitted(job, worker, &other_data);
  if (why.empty()) return true;
  ExcludeNode(context, job, worker.node_id, why, other_data);
  AppendNotice(context, job,
               absl::StrCat("the standby on ", worker.host, " (rank ", worker.slot,
                            ") could not take over, another is started elsewhere: ", why));
  return false;
}

// Returns whether the worker was heard of lately, if ever, and its node is in sight.
bool IsInSight(const Context& context, const Job& job, const Worker& worker) {
  if (!NodeInSight(context.state, worker, context.now)) return false;
  if (worker.last_heard == absl::InfinitePast()) return true;  // it has yet to connect
  return worker.session != 0 && context.now - worker.last_heard <= FailureDetection(job) / 2;
}

}  // namespace

bool MayStartSpare(const State& state, const Job& job) { return WhyNoMore(state, job, 1).empty(); }

void KeepStandbys(Context& context, Job& job) {
  WorkForUnplaced(context, job);
  const int wanted = job.spec().resources().standby();
  if (wanted <= 0 || !job.stepped || job.drain || job.no_standby) return;
  int there = 0;
  for (Slot& slot : job.slots) {
    if (!slot.standby) continue;
    ++there;
    if (slot.lent) continue;  // the next one starts there when no job waits for its room
    if (slot.vacant()) {
      if (IsCalm(job) && MayStartSpare(context.state, job)) StartLife(context, job, slot);
    } else if (Failed(*slot.worker)) {
      Replace(context, job, slot);
    } else if (!IsAdmissible(context, job, *slot.worker)) {
      Retire(context, job, slot, /*fault=*/0);
      slot.node_id.clear();
    }
  }
  if (there >= wanted || context.now < job.look_for_spare_at) return;
  const auto begun = static_cast<int64_t>(context.state.begun.size());
  job.look_for_spare_at = context.now + std::max(kLookEvery, begun * kLookForEach);
  for (; there < wanted && !job.no_standby; ++there) {
    if (!MayStartSpare(context.state, job)) return;
    Slot* slot = AddSlot(context, job, /*may_wait=*/true);
    if (slot == nullptr) return;
    slot->standby = true;
    StartLife(context, job, *slot);
  }
}

Slot* FindStandby(const Context& context, Job& job, const std::string& last_node) {
  // One that is ready, then one on another node, then the oldest.
  const auto rank = [&](const Worker& worker) {
    return std::tuple(!worker.ready.has_value(), worker.node_id == last_node, worker.since);
  };
  Slot* best = nullptr;
  for (Slot& slot : job.slots) {
    if (!slot.standby || slot.vacant() || slot.unplaced()) continue;
    const Worker& worker = *slot.worker;
    if (!worker.serves() || Failed(worker) || !IsInSight(context, job, worker)) continue;
    if (!worker.ready && HadOtherData(job, worker.node_id)) continue;  // it may end for that again
    if (best == nullptr || rank(worker) < rank(*best->worker)) best = &slot;
  }
  return best;
}

bool TakeOver(const Context& context, Job& job, Slot& slot) {
  Slot* const spare = FindStandby(context, job, slot.node_id);
  if (spare == nullptr) return false;
  spare->standby = false;
  slot.standby = true;
  return true;
}

int ReadyStandbys(const Job& job) {
  return static_cast<int>(std::count_if(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.standby && slot.worker && slot.worker->ready && slot.worker->serves() &&
           !Failed(*slot.worker);
  }));
}

}  // namespace lockstep::coordinator
