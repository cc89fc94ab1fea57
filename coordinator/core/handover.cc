// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/handover.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/command.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/standby.h"
#include "job/meaning/defaults.h"

namespace lockstep::coordinator {
namespace {

// A worker that could not relieve another is followed by the next one after this time.
constexpr absl::Duration kAgainAfter = absl::Seconds(10);

bool IsDrained(const Node& node) { return node.drain.has_value() || (node.stopping && node.keeps); }

bool OnDrained(const State& state, const Worker& worker) {
  const auto node = state.nodes.find(worker.node_id);
  return node != state.nodes.end() && IsDrained(node->second);
}

// "rank 2 on node-b, which is drained,"
std::string WhoLeaves(const State& state, const Worker& worker) {
  return absl::StrCat("rank ", worker.slot, " on ", worker.node_id,
                      OnLeaving(state, worker) ? ", whose agent leaves," : ", which is drained,");
}

// Its worker has a node, and nothing is known against it.
bool IsThere(const Slot& slot) {
  return slot.worker && slot.worker->serves() && !slot.unplaced() && !Failed(*slot.worker) &&
         !slot.worker->finished;
}

bool IsLivingMember(const Job& job, const Slot& slot) {
  return slot.works() && IsThere(slot) && IsMember(job, *slot.worker);
}

int IndexOf(const Job& job, const Slot& slot) { return static_cast<int>(&slot - job.slots.data()); }

int CountSlots(const Job& job, bool (*is_one)(const Slot&)) {
  return static_cast<int>(std::count_if(job.slots.begin(), job.slots.end(), is_one));
}

// Members that go on whatever becomes of the drained nodes.
int StayingMembers(const State& state, const Job& job) {
  return static_cast<int>(std::count_if(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return IsLivingMember(job, slot) && !OnDrained(state, *slot.worker);
  }));
}

// It has a data plane that workers of other hosts do not reach.
bool IsBoundToHost(const Worker& worker) {
  return worker.ready && !worker.ready->address().shm().empty() &&
         worker.ready->address().tcp().empty();
}

// Why no worker on another node can ever take the part of one of this job's; empty: one can.
std::string WhyBound(const Job& job) {
  if (IsCommand(job)) return "";  // it begins again wherever it is
  const bool bound = std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return IsLivingMember(job, slot) && IsBoundToHost(*slot.worker);
  });
  if (bound) return "its workers share one host's memory (GPUs of one host, or train.zero_stage)";
  const int most = std::min(job::MostWorkers(job.spec()), job::MostUsefulWorkers(job.spec()));
  if (job.generation.message.members_size() == 1 && most < 2) {
    return "the state of a job's only worker goes to another one only where train.shards and "
           "elastic.max_workers are 2 or more";
  }
  return "";
}

void LetGo(Context& context, Slot& slot) {
  slot.worker->phase = Worker::Phase::kLeaving;
  slot.worker->since = context.now;
  context.wish_nodes.push_back(slot.worker->node_id);
}

// The place is nobody's any more.
void GiveUp(Context& context, Slot& slot) {
  slot.relieves = -1;
  slot.wanted = false;
  if (slot.unplaced()) {
    slot.worker.reset();
  } else if (slot.worker && slot.worker->serves()) {
    LetGo(context, slot);
  }
}

std::string OnNode(const Worker& worker) {
  return absl::StrCat("rank ", worker.slot, " on ", worker.node_id);
}

void NoteFailedRelief(Context& context, Job& job, Slot& slot) {
  const Worker& worker = *slot.worker;
  job.relieve_again = context.now + kAgainAfter;
  if (IsForGood(worker) || MayStartLater(worker)) {
    ExcludeNode(context, job, worker.node_id, Cause(worker), HasOtherData(worker));
  }
  AppendNotice(context, job,
               absl::StrCat(OnNode(worker), " was to relieve rank ", slot.relieves,
                            ", and cannot: ", Cause(worker)));
  Retire(context, job, slot, /*fault=*/0);
  GiveUp(context, slot);
}

// Those that failed, and those that nobody waits for any more.
void DropReliefs(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (slot.relieves < 0) continue;
    if (slot.worker && Failed(*slot.worker)) {
      NoteFailedRelief(context, job, slot);
      continue;
    }
    const Slot& other = job.slots[static_cast<size_t>(slot.relieves)];
    // One that has no node may get none for long, and the job has other ways.
    const bool needed = slot.worker && slot.worker->serves() && !slot.unplaced() && other.wanted &&
                        other.worker && OnDrained(context.state, *other.worker) &&
                        !OnDrained(context.state, *slot.worker);
    if (!needed) GiveUp(context, slot);
  }
}

// Returns whether the job has as many as it shall have.
bool HasAll(const Job& job) {
  return CountSlots(job, [](const Slot& s) { return s.works(); }) >= job.target_workers;
}

// Places whose workers left, or need not leave any more.
void TakeBack(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (!slot.returns) continue;
    if (HasAll(job)) {
      slot.returns = false;  // the job was scaled down meanwhile
    } else if (slot.vacant()) {
      slot.node_id.clear();  // it has nothing there any more
    } else if (slot.worker->serves() && !OnDrained(context.state, *slot.worker)) {
      slot.returns = false;
      slot.wanted = true;
    }
  }
}

// One that has nothing yet which others lack. Where no node has room it stays if the job needs it.
void MoveNewcomer(Context& context, Job& job, Slot& slot) {
  if (FindRoom(context, job) == nullptr && !HasActiveGeneration(job)) return;
  const std::string before = WhoLeaves(context.state, *slot.worker);
  Retire(context, job, slot, /*fault=*/0);
  if (slot.standby) return;  // the next one follows by itself
  StartLife(context, job, slot);
  AppendNotice(context, job,
               absl::StrCat(before, " ",
                            slot.unplaced() ? "waits for another node"
                                            : absl::StrCat("starts on ", slot.node_id)));
}

// A new place, or one that was given up, for a worker that relieves that of place `index`.
void OpenRelief(Context& context, Job& job, int index) {
  if (context.now < job.relieve_again) return;
  Slot* const place = FreePlace(job);
  if (place == nullptr) return;
  place->relieves = index;
  place->node_id.clear();
  StartLife(context, job, *place);
  const Worker& leaves = *job.slots[static_cast<size_t>(index)].worker;
  AppendNotice(context, job,
               absl::StrCat(WhoLeaves(context.state, leaves), " hands over to a worker on ",
                            place->node_id, " when that one is ready"));
}

// A member: somebody takes its part, or the job does without it, or it stays.
void Relieve(Context& context, Job& job, int index) {
  Slot& slot = job.slots[static_cast<size_t>(index)];
  if (FindRelief(job, slot) != nullptr) return;
  const int staying = StayingMembers(context.state, job);
  const int working = CountSlots(job, [](const Slot& s) { return s.works(); });
  if (working > job.target_workers && staying > 0) {
    slot.wanted = false;  // who relieves it is a member already
    return;
  }
  if (WhyBound(job).empty()) {
    if (FindRoomToRelieve(context, job, *slot.worker) != nullptr)
      return OpenRelief(context, job, index);
    Slot* const spare = FindStandby(context, job, slot.worker->node_id);
    if (spare != nullptr && spare->worker->ready && !OnDrained(context.state, *spare->worker)) {
      spare->standby = false;
      spare->relieves = index;
      return;
    }
  }
  if (staying < job.least_workers()) return;
  slot.wanted = false;
  slot.returns = true;
  AppendNotice(context, job,
               absl::StrCat(WhoLeaves(context.state, *slot.worker),
                            " leaves; another one starts when a node has room"));
}

// Returns whether it would be let into the next generation; says why not, and is rid of it.
bool IsFit(Context& context, Job& job, Slot& relief) {
  bool other_data = false;
  std::string why = WhyNotAdmitted(job, *relief.worker, &other_data);
  if (why.empty() && IsBoundToHost(*relief.worker)) {
    why = absl::StrCat("no worker of another host reaches it (",
                       InterfacesFlag(context.state.options.nodes_by), ")");
  }
  if (why.empty()) return true;
  ExcludeNode(context, job, relief.worker->node_id, why, other_data);
  AppendNotice(context, job,
               absl::StrCat(OnNode(*relief.worker), " was to relieve rank ", relief.relieves,
                            ", and cannot: ", why));
  job.relieve_again = context.now + kAgainAfter;
  GiveUp(context, relief);
  return false;
}

// Those that are ready take the parts of those that they relieve.
void HandOver(Context& context, Job& job) {
  if (!HasActiveGeneration(job) || job.generation.regroup) return;
  int holders = 0;
  for (const Slot& slot : job.slots) holders += IsLivingMember(job, slot);
  const bool alone = holders == 1;
  const bool one_by_one = job.spec().train().zero_stage() > 0;
  for (Slot& relief : job.slots) {
    if (relief.relieves < 0 || !IsThere(relief) || !relief.worker->ready) continue;
    Slot& other = job.slots[static_cast<size_t>(relief.relieves)];
    if (!IsLivingMember(job, other) || !IsFit(context, job, relief)) continue;
    if (!alone && holders < 2) return;
    relief.relieves = -1;
    // The only one that has the state leaves when the other one has it, too.
    if (!alone) other.wanted = false;
    --holders;
    if (alone || one_by_one) return;
  }
}

// The only worker and the one that has relieved it both work for the job when that one's node is
// drained no more: of those that the job has too many newcomers go first, then the newest.
void LetTooManyGo(Context& context, Job& job) {
  if (!HasActiveGeneration(job) || job.generation.regroup) return;
  int over = CountSlots(job, [](const Slot& s) { return s.works(); }) - job.target_workers;
  int staying = StayingMembers(context.state, job) - job.target_workers;
  if (over <= 0 || staying < 0) return;
  for (const bool members : {false, true}) {
    for (auto slot = job.slots.rbegin(); slot != job.slots.rend() && over > 0; ++slot) {
      if (!slot->works()) continue;
      if (!members && !(slot->worker && IsMember(job, *slot->worker))) {
        GiveUp(context, *slot);
        --over;
      } else if (members && staying > 0 && IsLivingMember(job, *slot)) {
        slot->wanted = false;
        --over;
        --staying;
      }
    }
  }
}

// Returns whether there may be anything to do; seldom, so it is asked first.
bool HasMoves(const State& state, const Job& job) {
  if (!state.drained.empty()) return true;
  int working = 0;
  for (const Slot& slot : job.slots) {
    if (slot.relieves >= 0 || slot.returns) return true;
    working += slot.works();
  }
  return working > job.target_workers;
}

// Returns whether somebody on a node that stays prepares to relieve one of the job's workers, or is
// ready to: who is to join for another reason keeps no worker whose agent leaves
// (IsLeftByItsAgent).
bool IsToTakeTheState(const State& state, const Slot& slot) {
  return slot.relieves >= 0 && IsThere(slot) && !OnLeaving(state, *slot.worker);
}

// Returns whether the job is to save at once: all who have its state are left by their agents, and
// nobody takes it over in time. Between two generations that is so where too few are ready for the
// next one; else they go on, and look then.
bool MustSave(const State& state, const Job& job, absl::Time now) {
  if (job.generation.regroup) return false;
  const bool active = HasActiveGeneration(job);
  int holders = 0, able = 0;
  bool taken_over = false, prepared = false, in_time = true;
  for (const Slot& slot : job.slots) {
    if (slot.works() && slot.worker && Able(job, *slot.worker)) ++able;
    if (IsToTakeTheState(state, slot)) {
      prepared = true;
      taken_over = taken_over || (active && slot.worker->ready);
    }
    if (!IsLivingMember(job, slot)) continue;
    if (!OnLeaving(state, *slot.worker) || (!active && !StandsBetween(job, *slot.worker))) {
      return false;
    }
    in_time = in_time && now < state.nodes.at(slot.worker->node_id).saves_at;
    ++holders;
  }
  if (holders == 0 || taken_over || (prepared && in_time)) return false;
  return active || able < job.least_workers();
}

}  // namespace

bool IsLeftByItsAgent(const State& state, const Job& job, const Worker& worker) {
  if (!OnLeaving(state, worker)) return false;
  if (job.generation.message.generation() == 0) return true;  // there is nothing yet
  // Who joined the generation has the job's state from those who had it once it has made a step.
  const bool joining = job.generation.message.generation() > 1 && !job.generation.stepped;
  const bool changes = !HasActiveGeneration(job) || job.generation.regroup || job.drain || joining;
  if (changes || ResultIsThere(job) || worker.finished) return false;
  const auto index = static_cast<size_t>(worker.slot);
  if (index >= job.slots.size() || !job.slots[index].worker ||
      job.slots[index].worker->incarnation != worker.incarnation) {
    return false;  // of a life before: its end is under way
  }
  const Slot& slot = job.slots[index];
  return slot.wanted && FindRelief(const_cast<Job&>(job), slot) == nullptr;
}

Slot* FindRelief(Job& job, const Slot& slot) {
  const int index = IndexOf(job, slot);
  const auto found = std::find_if(job.slots.begin(), job.slots.end(), [index](const Slot& other) {
    return other.relieves == index && other.worker && other.worker->serves() && !other.unplaced() &&
           !Failed(*other.worker);
  });
  return found == job.slots.end() ? nullptr : &*found;
}

void LeaveDrainedNodes(Context& context, Job& job) {
  if (job.drain || !HasMoves(context.state, job) || ResultIsThere(job)) return;
  DropReliefs(context, job);
  TakeBack(context, job);
  for (size_t i = 0; i < job.slots.size(); ++i) {
    Slot& slot = job.slots[i];
    if (!slot.wanted || slot.relieves >= 0 || !IsThere(slot)) continue;
    if (!OnDrained(context.state, *slot.worker)) continue;
    if (!IsMember(job, *slot.worker)) {
      MoveNewcomer(context, job, slot);
    } else if (HasActiveGeneration(job) && !job.generation.regroup) {
      Relieve(context, job, static_cast<int>(i));
    }
  }
  HandOver(context, job);
  LetTooManyGo(context, job);
  if (MustSave(context.state, job, context.now)) StopToSave(context, job);
  for (const Slot& slot : job.slots) {
    if (slot.worker && OnLeaving(context.state, *slot.worker)) {
      context.wish_nodes.push_back(slot.worker->node_id);
    }
  }
}

void TakeReturningBack(Context& context, Job& job) {
  if (job.drain || job.ending || job.final() || ResultIsThere(job)) return;
  for (Slot& slot : job.slots) {
    if (!slot.returns || !slot.vacant() || HasAll(job)) continue;
    if (FindRoom(context, job, /*may_wait=*/true) == nullptr) return;  // nor for the next one
    slot.wanted = true;
    StartLife(context, job, slot);
    slot.returns = false;
  }
}

std::string SayMoves(const State& state, const Job& job, const std::string& node_id) {
  if (job.final()) return "";
  const std::string bound = WhyBound(job);
  std::vector<std::string> said;
  for (const Slot& slot : job.slots) {
    if (!IsThere(slot) || slot.aside() || !OnDrained(state, *slot.worker)) continue;
    const Worker& worker = *slot.worker;
    if (!node_id.empty() && worker.node_id != node_id) continue;
    const Slot* relief = FindRelief(const_cast<Job&>(job), slot);
    if (!slot.wanted) {
      said.push_back(absl::StrCat(OnNode(worker), " leaves after its step"));
    } else if (relief != nullptr) {
      said.push_back(absl::StrCat(OnNode(worker), " hands over to a worker on ", relief->node_id));
    } else if (!bound.empty()) {
      said.push_back(absl::StrCat(OnNode(worker), " stays: ", bound));
    } else {
      said.push_back(absl::StrCat(OnNode(worker), " stays until another node has room"));
    }
  }
  return absl::StrJoin(said, "; ");
}

}  // namespace lockstep::coordinator
