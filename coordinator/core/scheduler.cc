// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/scheduler.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/handover.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/queue_requests.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/standby.h"
#include "coordinator/core/waiting.h"

namespace lockstep::coordinator {
namespace {

// So many at the front of the queue are told each time why they wait; the others are told when
// somebody asks.
constexpr size_t kTold = 16;
// What changes by itself (an exclusion ends, the time of a node that is left out, what users who
// share have used) is looked at so often, and less often where many wait.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kLookForEach = absl::Milliseconds(1);

int UnusedLocalRank(const Job& job, const Slot& but, const Node& node) {
  std::set<int> taken;
  for (auto it = node.places.lower_bound({job.id, 0});
       it != node.places.end() && it->first == job.id; ++it) {
    const auto place = static_cast<size_t>(it->second);
    if (place >= job.slots.size() || &job.slots[place] == &but) continue;
    if (job.slots[place].node_id == node.id) taken.insert(job.slots[place].local_rank);
  }
  int rank = 0;
  while (taken.count(rank) > 0) ++rank;
  return rank;
}

// Puts the life of the place on `node`.
void PutOn(Context& context, const Job& job, Slot& slot, Node& node) {
  if (slot.node_id != node.id) {
    slot.node_id = node.id;
    slot.local_rank = UnusedLocalRank(job, slot, node);
  }
  Worker& worker = *slot.worker;
  worker.phase = Worker::Phase::kPlaced;
  SetDevice(PickDevice(context.state, job, node, slot.local_rank), worker);
  worker.allocation = AllocationOf(job.spec(), worker.device);
  worker.node_id = node.id;
  worker.local_rank = slot.local_rank;
  worker.host = node.host;
  worker.starts_at = job.starts_again_at;
  worker.since = std::max(context.now, worker.starts_at);
  NotePlace(context.state, node, job.id, worker.slot);
  context.wish_nodes.push_back(node.id);
}

Slot& OpenPlace(Job& job, absl::Time now) {
  const int index = static_cast<int>(job.slots.size());
  Slot& slot = job.slots.emplace_back();
  slot.lives = job.lives + 1;
  Worker& worker = slot.worker.emplace();
  worker.incarnation = absl::StrCat(job.id, ".", index, ".", slot.lives);
  worker.slot = index;
  worker.since = now;
  return slot;
}

using NodePlacement = std::vector<std::pair<Node*, int>>;

void Start(Context& context, Job& job, const NodePlacement& placement) {
  std::vector<std::string> hosts;
  job.slots.clear();
  // More than the journal may have of a job would not be read again.
  const auto wanted = static_cast<size_t>(std::clamp(job.wanted_workers(), 0, kMaxWorkers));
  job.slots.reserve(wanted);
  for (const auto& [node, workers] : placement) {
    if (node->is_private) {
      node->private_job = job.id;
      context.changed_nodes.insert(node->id);
    }
    hosts.push_back(node->host);
    for (int local = 0; local < workers; ++local) {
      PutOn(context, job, OpenPlace(job, context.now), *node);
    }
  }
  const int started = static_cast<int>(job.slots.size());
  while (job.slots.size() < wanted) OpenPlace(job, context.now);
  job.target_workers = static_cast<int>(job.slots.size());
  job.started = context.now;
  job.starts_at = absl::InfiniteFuture();
  std::string reason = SayStarting(started, hosts);
  if (started < job.target_workers) {
    absl::StrAppend(&reason, "; ", job.target_workers - started, " more when a node has room");
  }
  SetState(context, job, STARTING, reason);
}

// The numbers of workers are those of the nodes that the job gets.
void SetCounts(const QueueView& view, const Placement& placement, Job& job) {
  if (!job::IsUncounted(job.spec())) return;
  std::vector<int> ranks;
  for (const auto& [node, workers] : placement) ranks.push_back(workers);
  const std::vector<Free> whole = Whole(view.queue.cluster);
  // Without what the job may not use: its other nodes decide the same.
  const auto waiting = std::find(view.waiting.begin(), view.waiting.end(), &job);
  const Barred barred =
      view.queue.waiting[static_cast<size_t>(waiting - view.waiting.begin())].barred;
  const std::string device =
      CountedDevice(*job.ask, Offer{view.queue.cluster, whole, nullptr, barred});
  const absl::Status set = job::SetCounted(ranks, device, job.request.mutable_spec());
  LS_CHECK(set.ok()) << set;
  job.ask = AskOf(job);
}

void CarryOutStarts(Context& context, const QueueView& view, const Decisions& decisions) {
  for (const Decisions::Start& start : decisions.starts) {
    Job& job = context.state.jobs.at(view.waiting[static_cast<size_t>(start.waiting)]->id);
    SetCounts(view, start.placement, job);
    NodePlacement placement;
    for (const auto& [place, workers] : start.placement) {
      const std::string& id = view.queue.cluster.nodes[static_cast<size_t>(place)].id;
      placement.emplace_back(&context.state.nodes.at(id), workers);
    }
    Start(context, job, placement);
  }
}

void CarryOutRoom(Context& context, const QueueView& view, const Decisions& decisions) {
  context.state.kept_nodes.clear();
  if (!decisions.reservation) return;
  const Reservation& reservation = *decisions.reservation;
  const Job& head = *view.waiting[static_cast<size_t>(reservation.waiting)];
  context.state.kept_priority = head.spec().priority();
  for (size_t i = 0; i < reservation.leave.size(); ++i) {
    if (reservation.leave[i].slots > 0) continue;
    context.state.kept_nodes.insert(view.queue.cluster.nodes[i].id);
  }
  for (const int place : decisions.stop) {
    StopFor(context, context.state.jobs.at(view.running[static_cast<size_t>(place)]->id), head);
  }
  for (const auto& [running, spare] : decisions.shrink) {
    std::vector<int> places;
    for (const int i : spare) {
      places.push_back(view.spare[static_cast<size_t>(running)][static_cast<size_t>(i)]);
    }
    LendFor(context, context.state.jobs.at(view.running[static_cast<size_t>(running)]->id), places,
            head);
  }
}

// Says why the job waits. What is said already touches nothing: very many may wait.
void Say(Context& context, Job& job, const std::string& why) {
  if (job.state != PENDING || job.reason != why) SetState(context, job, PENDING, why);
}

// Says at the front of the queue why jobs wait.
void TellWaiting(Context& context, const QueueView& view, const Decisions& decisions) {
  if (decisions.order.empty()) return;
  WaitingTexts texts(context.state, view, decisions);
  size_t told = 0;
  for (const int place : decisions.order) {
    Job& job = context.state.jobs.at(view.waiting[static_cast<size_t>(place)]->id);
    if (job.state != PENDING || job.ending) continue;
    if (++told > kTold) return;
    Say(context, job, texts.Of(place));
  }
}

bool HasWorkerOn(const Job& job, const std::set<std::string>& nodes) {
  return !job.final() && std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && nodes.count(slot.worker->node_id) != 0;
  });
}

// Returns whether the node has room for one more worker of the job; when the job can do without it
// for a while, a node that is kept for another has none. Only where its data was another
// (Exclusion) with `other_data`, else only where it was not.
bool HasRoom(const Context& context, const Job& job, const Node& node, bool may_wait,
             bool other_data) {
  if (may_wait && context.state.kept_nodes.count(node.id) != 0) return false;
  return HadOtherData(job, node.id) == other_data &&
         Room(context.state, job, node, context.now) > 0;
}

// Returns whether a worker of the job that relieves another may have a node that is kept: one of
// higher priority, for which it is, would only stop the job to have the node again.
bool MayRelieveOnKept(const State& state, const Job& job, const Worker& relieved) {
  return state.kept_nodes.empty() || state.kept_priority <= job.spec().priority() ||
         OnLeaving(state, relieved);
}

// Puts the worker on its place's node, or on one that `find` knows to have room. Whether the job
// can do without it for a while is said to `find`.
template <typename Find>
void PlaceBy(Context& context, const Job& job, Slot& slot, Find find) {
  State& state = context.state;
  // A place that never had a worker, a spare's, or one that was lent or left is no loss to the job.
  const bool relieves = slot.relieves >= 0;
  const bool may_wait =
      relieves || slot.lives <= job.lives + 1 || slot.standby || slot.lent || slot.returns;
  const auto own = state.nodes.find(slot.node_id);
  if (own != state.nodes.end() &&
      HasRoom(context, job, own->second, may_wait, /*other_data=*/false)) {
    return PutOn(context, job, slot, own->second);
  }
  const Slot* const relieved = relieves ? &job.slots[static_cast<size_t>(slot.relieves)] : nullptr;
  // Who is to leave a drained node does not wait for others to get room.
  Node* const node = relieved != nullptr && relieved->worker
                         ? FindRoomToRelieve(context, job, *relieved->worker)
                         : find(may_wait);
  if (node != nullptr) return PutOn(context, job, slot, *node);
  slot.node_id.clear();
}

// Returns whether a job that is to save and leave has some workers, and too few to do so.
bool IsTooSmallToLeave(const Job& job) {
  if (job.generation.message.generation() == 0 || HasActiveGeneration(job)) return false;
  const auto workers = std::count_if(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.works() && slot.worker && !slot.unplaced();
  });
  return workers > 0 && workers < LeastMembers(job);
}

// All of them take room, so a node that has none is not asked twice.
void PlaceUnplaced(Context& context, Job& job) {
  if (job.ending || !WaitsForNode(job) || (job.drain && !IsTooSmallToLeave(job))) return;
  State& state = context.state;
  std::array<std::map<std::string, Node>::iterator, 4> next;
  next.fill(state.nodes.begin());
  const auto look = [&](size_t place, bool may_wait, bool other_data) -> Node* {
    for (auto& it = next[place]; it != state.nodes.end(); ++it) {
      if (HasRoom(context, job, it->second, may_wait, other_data)) return &it->second;
    }
    return nullptr;
  };
  const auto find = [&](bool is_spare, bool may_wait) -> Node* {
    Node* node = look(may_wait ? 1 : 0, may_wait, /*other_data=*/false);
    if (node == nullptr) node = look(may_wait ? 3 : 2, may_wait, /*other_data=*/true);
    return node != nullptr && is_spare && !MayStartSpare(state, job) ? nullptr : node;
  };
  bool placed = false;
  for (const bool spares : {false, true}) {  // the job waits for the others
    for (Slot& slot : job.slots) {
      if (!slot.unplaced() || slot.standby != spares) continue;
      PlaceBy(context, job, slot, [&](bool may_wait) { return find(spares, may_wait); });
      placed = placed || !slot.unplaced();
    }
  }
  if (placed || !job.drain) context.touched_jobs.insert(job.id);
}

// Places of running jobs whose workers wait for a node, or have left one. Those that are on drained
// ones look whether others have room.
void GrowJobs(Context& context, bool room_is_kept) {
  const std::set<std::string>& drained = context.state.drained;
  const std::set<std::string> begun = context.state.begun;
  for (const std::string& id : begun) {
    Job& job = context.state.jobs.at(id);
    if (!drained.empty() && HasWorkerOn(job, drained)) context.touched_jobs.insert(id);
    PlaceUnplaced(context, job);
    TakeReturningBack(context, job);
    if (!room_is_kept) TakeLentBack(context, job);
  }
}

// When time alone may change who starts.
void SetNextLook(Context& context, const QueueView& view) {
  State& state = context.state;
  state.schedule_at = absl::InfiniteFuture();
  bool ends = std::any_of(state.nodes.begin(), state.nodes.end(), [&](const auto& entry) {
    return IsLeftOut(entry.second.trust, context.now);
  });
  const Job* first = nullptr;
  bool share = false;
  for (size_t i = 0; i < view.waiting.size(); ++i) {
    const Job& job = *view.waiting[i];
    if (job.state != PENDING) continue;
    if (first == nullptr) first = &job;
    share = share || job.request.user() != first->request.user();
    const absl::Time starts_at = view.queue.waiting[i].starts_at;
    if (job.starts_at != starts_at) state.jobs.at(job.id).starts_at = starts_at;
    ends = ends || !job.excluded.empty() || job.starts_at <= context.now;
    if (job.starts_at > context.now) state.schedule_at = std::min(state.schedule_at, job.starts_at);
  }
  if (first == nullptr) return;
  for (const NodeFacts& node : view.queue.cluster.nodes) {
    if (node.open || node.awaited_until <= context.now) continue;
    state.schedule_at = std::min(state.schedule_at, node.awaited_until);
  }
  if (!ends && (!share || view.running.empty())) return;
  const int64_t waiting = static_cast<int64_t>(view.waiting.size());
  state.schedule_at =
      std::min(state.schedule_at, context.now + std::max(kLookEvery, waiting * kLookForEach));
}

// Takes out of what `jobs` wait for who has ended. Whoever ends by that may be one that others wait
// for.
void LookAtEnded(Context& context, const std::vector<Job*>& jobs) {
  std::vector<std::string> ended;
  const auto look = [&](Job& job) {
    if (job.state != PENDING) return;
    LookAtDependencies(context, job);
    if (job.final()) ended.push_back(job.id);
  };
  for (Job* const job : jobs) look(*job);
  if (ended.empty()) return;
  std::unordered_map<std::string, std::vector<Job*>> dependents;
  for (Job* const job : jobs) {
    for (const std::string& id : job->after) dependents[id].push_back(job);
    for (const std::string& id : job->after_any) dependents[id].push_back(job);
  }
  for (size_t i = 0; i < ended.size(); ++i) {
    const auto waiting = dependents.find(ended[i]);
    if (waiting == dependents.end()) continue;
    for (Job* const job : waiting->second) look(*job);
  }
}

// Says why jobs wait for others or are held. Returns how many still do.
int64_t LookAtUnready(Context& context) {
  State& state = context.state;
  std::vector<Job*> jobs;
  for (auto& [id, job] : state.jobs) {
    if (job.state == PENDING && !job.ending && !IsReady(job)) jobs.push_back(&job);
  }
  if (state.look_at_dependencies) LookAtEnded(context, jobs);
  state.look_at_dependencies = false;
  int64_t unready = 0;
  for (Job* const job : jobs) {
    if (job->state != PENDING || IsReady(*job)) continue;
    ++unready;
    Say(context, *job, WhyNotReady(*job));
  }
  return unready;
}

}  // namespace

void PlaceRecovering(Context& context, Job& job) {
  if (job.state == RECOVERING) PlaceUnplaced(context, job);
}

std::string SayStarting(int workers, const std::vector<std::string>& hosts) {
  return absl::StrCat("starting ", Count(workers, "worker"), " on ", absl::StrJoin(hosts, ", "));
}

bool WaitsForNode(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.unplaced() || (slot.returns && slot.vacant());
  });
}

void PlaceLife(Context& context, const Job& job, Slot& slot) {
  PlaceBy(context, job, slot, [&](bool may_wait) { return FindRoom(context, job, may_wait); });
}

Node* FindRoom(Context& context, const Job& job, bool may_wait, bool same_data) {
  for (const bool other_data : {false, true}) {
    if (other_data && same_data) break;
    for (auto& [id, node] : context.state.nodes) {
      if (HasRoom(context, job, node, may_wait, other_data)) return &node;
    }
  }
  return nullptr;
}

Node* FindRoomToRelieve(Context& context, const Job& job, const Worker& relieved) {
  const bool kept_too = MayRelieveOnKept(context.state, job, relieved);
  // Where the data was another it comes last, and not at all for one whose agent leaves: there is
  // no time for a try.
  for (const bool none_of_these : {true, false}) {
    if (!none_of_these && OnLeaving(context.state, relieved)) break;
    Node* node = FindRoom(context, job, /*may_wait=*/true, none_of_these);
    if (node == nullptr && kept_too)
      node = FindRoom(context, job, /*may_wait=*/false, none_of_these);
    if (node != nullptr) return node;
  }
  return nullptr;
}

Slot* FreePlace(Job& job) {
  const auto place = std::find_if(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return slot.vacant() && !slot.wanted && !slot.returns && !slot.lent && !slot.standby;
  });
  if (place != job.slots.end()) {
    place->wanted = true;
    return &*place;
  }
  if (job.slots.size() >= static_cast<size_t>(kMaxWorkers)) return nullptr;
  Slot& slot = job.slots.emplace_back();
  slot.lives = job.lives;
  return &slot;
}

Slot* AddSlot(Context& context, Job& job, bool may_wait) {
  const Node* const node = FindRoom(context, job, may_wait);
  if (node == nullptr) return nullptr;
  Slot* const place = FreePlace(job);
  if (place == nullptr) return nullptr;
  Slot& slot = *place;
  slot.local_rank = UnusedLocalRank(job, slot, *node);
  slot.node_id = node->id;
  return &slot;
}

void Schedule(Context& context) {
  const int64_t unready = LookAtUnready(context);
  // Those that stand without a worker come before those that have not begun.
  const std::set<std::string> begun = context.state.begun;
  for (const std::string& id : begun) PlaceRecovering(context, context.state.jobs.at(id));
  QueueView view = ViewQueue(context.state, context.now);
  context.state.scheduled = context.now;
  context.state.waiting = static_cast<int64_t>(view.waiting.size()) + unready;
  const Decisions decisions = RunPass(RulesOf(context.state.options), view.queue);
  CarryOutStarts(context, view, decisions);
  CarryOutRoom(context, view, decisions);
  TellWaiting(context, view, decisions);
  GrowJobs(context, decisions.reservation.has_value());
  SetNextLook(context, view);
}

}  // namespace lockstep::coordinator
