// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/scheduler.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/placement.h"

namespace lockstep::coordinator {
namespace {

// With how many workers the job may start.
int LeastWorkers(const Job& job) {
  const int least = job.spec().elastic().min_workers();
  return least > 0 ? std::min(least, job.wanted_workers()) : job.wanted_workers();
}

// Whether the job would start if nothing else ran.
bool WouldFit(Context& context, const Job& job) {
  if (job::IsUncounted(job.spec())) return !PlaceCounted(context, job, true).placement.empty();
  if (!Place(context, job, true).empty()) return true;
  return LeastWorkers(job) < job.wanted_workers() &&
         Workers(PlaceSome(context, job, true)) >= LeastWorkers(job);
}

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
  worker.device = PickDevice(context.state, job, node, slot.local_rank);
  worker.allocation = AllocationOf(job.spec(), worker.device);
  worker.node_id = node.id;
  worker.local_rank = slot.local_rank;
  worker.host = node.host;
  worker.since = context.now;
  NotePlace(context.state, node, job.id, worker.slot);
  context.wish_nodes.insert(node.id);
}

Slot& OpenPlace(Job& job, absl::Time now) {
  const int index = static_cast<int>(job.slots.size());
  Slot& slot = job.slots.emplace_back();
  slot.lives = 1;
  Worker& worker = slot.worker.emplace();
  worker.incarnation = absl::StrCat(job.id, ".", index, ".", slot.lives);
  worker.slot = index;
  worker.since = now;
  return slot;
}

void Start(Context& context, Job& job, const Placement& placement) {
  std::string hosts;
  job.slots.clear();
  for (const auto& [node, workers] : placement) {
    if (node->is_private) {
      node->private_job = job.id;
      context.changed_nodes.insert(node->id);
    }
    absl::StrAppend(&hosts, hosts.empty() ? "" : ", ", node->host);
    for (int local = 0; local < workers; ++local) {
      PutOn(context, job, OpenPlace(job, context.now), *node);
    }
  }
  const int started = static_cast<int>(job.slots.size());
  while (static_cast<int>(job.slots.size()) < job.wanted_workers()) OpenPlace(job, context.now);
  job.target_workers = static_cast<int>(job.slots.size());
  job.started = context.now;
  job.starts_at = absl::InfiniteFuture();
  std::string reason = absl::StrCat("starting ", Count(started, "worker"), " on ", hosts);
  if (started < job.target_workers) {
    absl::StrAppend(&reason, "; ", job.target_workers - started, " more when a node has room");
  }
  SetState(context, job, STARTING, reason);
}

// What would let the job start, when no node that is there could ever hold it.
std::string WhatWouldHelp(const Job& job, int nodes, int largest) {
  const auto& resources = job.spec().resources();
  const int per_node = resources.nproc_per_node();
  if (nodes == 0) return "start one with 'launcher join'";
  if (job::IsUncounted(job.spec())) {
    return absl::StrCat("start another with 'launcher join'",
                        resources.nproc_by() == "gpu" ? " on a host with GPUs" : "",
                        ", or submit with more train.shards or with a number of workers");
  }
  std::string text;
  if (largest < per_node) {
    absl::StrAppend(&text, "no node has ", Count(per_node, "slot"),
                    ": 'launcher join --slots=", per_node, "' makes one that has");
  } else {
    absl::StrAppend(&text, "start another with 'launcher join'");
  }
  if (resources.nodes() == 1 && largest > 0) {
    absl::StrAppend(&text, "; or submit with --nproc-per-node=", largest,
                    ", or set elastic.min_workers");
  }
  return text;
}

// Why the node that rank 0 is to be on does not take it; empty: it does, or the job names none.
std::string WhyNotRankZero(Context& context, const Job& job) {
  const std::string& wanted = job.spec().resources().rank0_node();
  if (wanted.empty()) return "";
  std::string why = "is not connected";
  for (const auto& [id, node] : context.state.nodes) {
    if (!IsRankZeroNode(job, id, node.host)) continue;
    if (Room(context.state, job, node, context.now) > 0) return "";
    if (InSight(context.state, node, context.now)) why = "has no room";
  }
  return absl::StrCat("; rank 0 is to be on ", wanted, ", which ", why);
}

std::string WhyWaiting(Context& context, const Job& job, const std::string& ahead) {
  int nodes = 0, silent = 0, closed = 0, slots = 0, free = 0, largest = 0;
  for (const auto& [id, node] : context.state.nodes) {
    if (node.session != 0 && !InSight(context.state, node, context.now)) ++silent;
    if (InSight(context.state, node, context.now) && !WhyNoWork(node, context.now).empty())
      ++closed;
    const int whole = Room(context.state, job, node, context.now, /*empty=*/true);
    if (whole == 0) continue;
    ++nodes;
    slots += whole;
    largest = std::max(largest, whole);
    free += Room(context.state, job, node, context.now);
  }
  std::string text = absl::StrCat("needs ", SayWanted(job));
  if (LeastWorkers(job) < job.wanted_workers() && !job::IsUncounted(job.spec())) {
    absl::StrAppend(&text, ", at least ", Count(LeastWorkers(job), "slot"));
  }
  if (nodes == 0) {
    absl::StrAppend(&text, closed > 0   ? "; no node takes work"
                           : silent > 0 ? "; no node answers"
                                        : "; no node is connected");
  } else {
    absl::StrAppend(&text, "; ", Count(nodes, "node"), " with ", Count(slots, "slot"),
                    nodes == 1 ? " is" : " are", " connected");
    if (free < slots) absl::StrAppend(&text, ", ", free, " free");
  }
  for (const auto& [node_id, exclusion] : job.excluded) {
    if (!IsExcluded(job, node_id, context.now)) continue;
    absl::StrAppend(&text, "; not on ", node_id, ": ", exclusion.reason);
  }
  for (const auto& [node_id, node] : context.state.nodes) {
    const std::string why = WhyNoWork(node, context.now);
    if (!why.empty()) absl::StrAppend(&text, "; not on ", node_id, ": ", why);
  }
  const std::string rank_zero = WhyNotRankZero(context, job);
  absl::StrAppend(&text, rank_zero);
  if (!ahead.empty()) return absl::StrCat(text, "; waits behind job ", ahead);
  if (!rank_zero.empty() || WouldFit(context, job)) return text;
  return absl::StrCat(text, "; ", WhatWouldHelp(job, nodes, largest));
}

// The workers of the job are known from now on.
void Settle(Job& job, const CountedPlacement& counted) {
  std::vector<int> ranks;
  for (const auto& [node, workers] : counted.placement) ranks.push_back(workers);
  const absl::Status set = job::SetCounted(ranks, counted.device, job.request.mutable_spec());
  LS_CHECK(set.ok()) << set;
}

// Where the job starts now; empty: it waits. An elastic one waits a moment for all its workers, so
// that it does not begin small just because one node was quicker than the others.
Placement PlaceNow(Context& context, Job& job) {
  if (job::IsUncounted(job.spec())) {
    CountedPlacement counted = PlaceCounted(context, job, false);
    if (!counted.placement.empty()) Settle(job, counted);
    return std::move(counted.placement);
  }
  Placement placement = Place(context, job, false);
  if (!placement.empty() || LeastWorkers(job) == job.wanted_workers()) return placement;
  placement = PlaceSome(context, job, false);
  if (Workers(placement) < LeastWorkers(job)) {
    job.starts_at = absl::InfiniteFuture();
    return {};
  }
  job.starts_at = std::min(job.starts_at, context.now + context.state.options.elastic_wait);
  return context.now >= job.starts_at ? placement : Placement{};
}

bool HasWorkerOn(const Job& job, const std::set<std::string>& nodes) {
  return !job.final() && std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && nodes.count(slot.worker->node_id) != 0;
  });
}

// Places of running jobs whose workers wait for a node. Those that are on drained ones look
// whether others have room.
void GrowJobs(Context& context) {
  std::set<std::string> drained;
  for (const auto& [id, node] : context.state.nodes) {
    if (node.drain) drained.insert(id);
  }
  for (auto& [id, job] : context.state.jobs) {
    if (!drained.empty() && HasWorkerOn(job, drained)) context.touched_jobs.insert(id);
    if (job.ending || job.drain || !WaitsForNode(job)) continue;
    for (Slot& slot : job.slots) {
      if (slot.unplaced()) PlaceLife(context, job, slot);
    }
    context.touched_jobs.insert(id);
  }
}

}  // namespace

bool WaitsForNode(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(),
                     [](const Slot& slot) { return slot.unplaced(); });
}

void PlaceLife(Context& context, const Job& job, Slot& slot) {
  State& state = context.state;
  const auto own = state.nodes.find(slot.node_id);
  if (own != state.nodes.end() && Room(state, job, own->second, context.now) > 0) {
    return PutOn(context, job, slot, own->second);
  }
  if (Node* node = FindRoom(context, job)) return PutOn(context, job, slot, *node);
  slot.node_id.clear();
}

Node* FindRoom(Context& context, const Job& job) {
  for (auto& [id, node] : context.state.nodes) {
    if (Room(context.state, job, node, context.now) > 0) return &node;
  }
  return nullptr;
}

Slot* AddSlot(Context& context, Job& job) {
  if (job.slots.size() >= static_cast<size_t>(kMaxWorkers)) return nullptr;
  const Node* const node = FindRoom(context, job);
  if (node == nullptr) return nullptr;
  Slot& slot = job.slots.emplace_back();
  slot.local_rank = UnusedLocalRank(job, slot, *node);
  slot.node_id = node->id;
  return &slot;
}

void Schedule(Context& context) {
  std::vector<Job*> waiting;
  for (auto& [id, job] : context.state.jobs) {
    if (job.state == PENDING && !job.ending) waiting.push_back(&job);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) {
    if (a->spec().priority() != b->spec().priority()) {
      return a->spec().priority() > b->spec().priority();
    }
    return a->submit_order < b->submit_order;
  });
  std::string ahead;
  for (Job* job : waiting) {
    const Placement placement = ahead.empty() ? PlaceNow(context, *job) : Placement{};
    if (!placement.empty()) {
      Start(context, *job, placement);
      continue;
    }
    SetState(context, *job, PENDING, WhyWaiting(context, *job, ahead));
    if (ahead.empty() && WouldFit(context, *job)) ahead = job->id;
  }
  GrowJobs(context);
}

}  // namespace lockstep::coordinator
