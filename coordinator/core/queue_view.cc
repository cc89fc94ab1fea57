// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/queue_view.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/command.h"
#include "coordinator/core/context.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/natural_order.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/run_time.h"
#include "job/meaning/defaults.h"

namespace lockstep::coordinator {
namespace {

constexpr char kRack[] = "rack";
// Others of less use do not overtake a job that has waited for so long, or it might never start.
constexpr absl::Duration kOverdueAfter = absl::Hours(24);
// A process that is there so long after its end, or its job's, is not counted upon to go.
constexpr absl::Duration kEndedSoon = absl::Minutes(1);
constexpr char kNobody[] = "\n";  // no user's name

// The nodes in the order of their hosts.
std::vector<const Node*> SortedNodes(const State& state) {
  std::vector<std::pair<NaturalName, const Node*>> sorted;
  sorted.reserve(state.nodes.size());
  for (const auto& [id, node] : state.nodes) sorted.emplace_back(NaturalName(&node.host), &node);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const int order = a.first.Compare(b.first);
    return order != 0 ? order < 0 : NaturalLess(a.second->id, b.second->id);
  });
  std::vector<const Node*> nodes;
  nodes.reserve(sorted.size());
  for (const auto& [name, node] : sorted) nodes.push_back(node);
  return nodes;
}

void AddNodes(const State& state, absl::Time now, QueueView& view) {
  NodePool& cluster = view.queue.cluster;
  std::map<std::string, int> racks;
  for (const Node* node : SortedNodes(state)) {
    NodeFacts facts = FactsOf(state, *node, now);
    const auto rack = node->labels.find(kRack);
    if (rack != node->labels.end()) {
      facts.rack =
          racks.try_emplace(rack->second, static_cast<int>(racks.size()) + 1).first->second;
    }
    const int place = static_cast<int>(cluster.nodes.size());
    view.node_places[node->id] = place;
    if (node->is_private) view.private_nodes.push_back(place);
    cluster.nodes.push_back(std::move(facts));
    cluster.free.push_back(FreeOn(state, *node, nullptr));
    AddGpuPlaces(state, *node, &view.gpu_places);
  }
}

// Workers that hold something of their node: one slot each.
Taken HoldOf(const QueueView& view, const Worker& worker) {
  const auto node = view.node_places.find(worker.node_id);
  if (node == view.node_places.end()) return Taken{-1};
  const auto gpu = view.gpu_places.find(&worker);
  return Taken{node->second, 1, worker.on_gpu ? 1 : 0,
               gpu == view.gpu_places.end() ? 0 : gpu->second};
}

// Returns whether the place has a worker that the job can go on with at once.
bool IsLivingMember(const Job& job, const Slot& slot) {
  return slot.works() && slot.worker && slot.worker->serves() && IsMember(job, *slot.worker) &&
         !Failed(*slot.worker);
}

// The places whose workers can go, the newest first: spares, and then those of an elastic job above
// its minimum. Who is no member yet, or waits for a node, does not make up for a member that goes.
std::vector<int> SparePlaces(const Job& job) {
  std::vector<int> spare;
  if (!job.stepped || !HasActiveGeneration(job) || job.generation.regroup) return spare;
  auto members = std::count_if(job.slots.begin(), job.slots.end(),
                               [&](const Slot& slot) { return IsLivingMember(job, slot); });
  const int least = std::max(1, job::LeastWorkers(job.spec()));
  if (members < least) return spare;
  for (size_t i = job.slots.size(); i-- > 0;) {
    const Slot& slot = job.slots[i];
    if (slot.standby && slot.worker && slot.worker->serves() && !slot.unplaced()) {
      spare.push_back(static_cast<int>(i));
    }
  }
  for (size_t i = job.slots.size(); i-- > 0;) {
    const Slot& slot = job.slots[i];
    if (!slot.works() || !slot.worker || slot.unplaced() || slot.worker->gone()) continue;
    if (IsLivingMember(job, slot)) {
      if (members == least) continue;
      --members;
    }
    spare.push_back(static_cast<int>(i));
  }
  return spare;
}

// Returns whether the place is one of those that are the job's for good. A spare's is while it has
// a process: the quota is asked again before there is another one, so that none of the user's jobs
// waits for one that may not come.
bool IsItsOwn(const Slot& slot) {
  if (slot.standby) return HasProcess(slot);
  return (slot.wanted && slot.relieves < 0) || slot.lent || slot.returns;
}

// Workers that the job is yet to get: who lent a place and has not left it has it still. A job that
// is to save and leave gets those without whom it can't, also in place of one who had saved and
// left: the others may have to save once more.
int OwedTo(const Job& job) {
  if (job.ending || (job.drain && IsCommand(job))) return 0;
  return static_cast<int>(std::count_if(job.slots.begin(), job.slots.end(), [](const Slot& slot) {
    return !HasProcess(slot) && IsItsOwn(slot);
  }));
}

void AddRunning(const Job& job, QueueView& view) {
  Running running;
  running.priority = job.spec().priority();
  running.user = job.request.user();
  running.started = job.started;
  running.ends = view.queue.now + (job::TimeLimit(job.spec()) - RanFor(job, view.queue.now));
  running.leaving = job.drain.has_value() || job.ending.has_value();
  running.may_stop = !job.preempted;
  std::map<int, Taken> holds, leaving;  // by node
  for (const Slot& slot : job.slots) {
    if (!HasProcess(slot)) continue;
    const Taken hold = HoldOf(view, *slot.worker);
    if (hold.node < 0) continue;
    auto& sums = slot.wanted ? holds : leaving;
    Join(hold, sums.try_emplace(hold.node, Taken{hold.node}).first->second);
  }
  for (const auto& [node, hold] : holds) running.holds.push_back(hold);
  running.owed = OwedTo(job);
  if (!leaving.empty()) {
    Running part = running;
    part.part = part.leaving = true;
    part.owed = 0;
    part.holds.clear();
    for (const auto& [node, hold] : leaving) part.holds.push_back(hold);
    view.queue.running.push_back(std::move(part));
    view.running.push_back(&job);
    view.spare.emplace_back();
  }
  std::vector<int> spare = SparePlaces(job);
  std::erase_if(spare, [&](int place) {
    return HoldOf(view, *job.slots[static_cast<size_t>(place)].worker).node < 0;
  });
  for (const int place : spare) {
    running.spare.push_back(HoldOf(view, *job.slots[static_cast<size_t>(place)].worker));
  }
  view.queue.running.push_back(std::move(running));
  view.running.push_back(&job);
  view.spare.push_back(std::move(spare));
}

// Processes that jobs have left behind, by job: their agents end them, so their places are as good
// as free. They count against no quota.
void AddLeftBehind(const State& state, absl::Time now, QueueView& view) {
  std::map<std::string, std::map<int, Taken>> left;
  const auto add = [&](const std::string& id, const Worker& worker) {
    if (worker.gone()) return;
    const Taken hold = HoldOf(view, worker);
    if (hold.node < 0) return;
    Join(hold, left[id].try_emplace(hold.node, Taken{hold.node}).first->second);
  };
  const auto has_ended = [&](const std::string& id) {
    const auto job = state.jobs.find(id);
    return job != state.jobs.end() && job->second.final() && now < job->second.ended + kEndedSoon;
  };
  for (const auto& [node_id, node] : state.nodes) {
    for (const auto& [id, place] : node.places) {
      if (!has_ended(id)) continue;
      const Job& job = state.jobs.at(id);
      const auto index = static_cast<size_t>(place);
      if (index < job.slots.size() && job.slots[index].worker) {
        if (job.slots[index].worker->node_id == node_id) add(id, *job.slots[index].worker);
      }
    }
    for (const std::string& id : JobsOn(node)) {
      if (!has_ended(id)) continue;
      for (const Worker& former : state.jobs.at(id).former) {
        if (former.node_id == node_id) add(id, former);
      }
    }
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.final()) continue;
    for (const Worker& former : job.former) {
      const absl::Time ended =
          former.failed_at == absl::InfiniteFuture() ? former.since : former.failed_at;
      if (now < ended + kEndedSoon) add(id, former);
    }
  }
  for (const auto& [id, holds] : left) {
    Running part;
    part.user = kNobody;
    part.part = part.leaving = true;
    for (const auto& [node, hold] : holds) part.holds.push_back(hold);
    view.queue.running.push_back(std::move(part));
    view.running.push_back(&state.jobs.at(id));
    view.spare.emplace_back();
  }
}

// Returns `barred` and these nodes besides.
Barred With(const std::vector<int>& nodes, const Barred& barred, const QueueView& view) {
  if (nodes.empty()) return barred;
  auto all = barred ? std::make_shared<std::vector<bool>>(*barred)
                    : std::make_shared<std::vector<bool>>(view.queue.cluster.nodes.size());
  for (const int node : nodes) (*all)[static_cast<size_t>(node)] = true;
  return all;
}

// Nodes that the job may not use besides those that are closed to all, and those whose data was
// another when its workers were last there (Exclusion), which come after the others.
void Bar(const QueueView& view, const State& state, const Job& job, absl::Time now,
         std::unordered_map<std::string, Barred>& by_labels, Waiting* waiting) {
  const Ask& ask = *job.ask;
  Barred barred;
  if (!ask.labels.empty()) {
    Barred& known = by_labels[ask.shape];
    if (known == nullptr) known = BarredByLabels(view.queue.cluster, ask);
    barred = known;
  }
  std::vector<int> own, other_data;
  for (const auto& [id, exclusion] : job.excluded) {
    const auto place = view.node_places.find(id);
    if (place == view.node_places.end()) continue;
    if (now < exclusion.until) {
      own.push_back(place->second);
    } else if (exclusion.other_data) {
      other_data.push_back(place->second);
    }
  }
  waiting->special = !own.empty() || !other_data.empty() || !view.private_nodes.empty();
  for (const int node : view.private_nodes) {
    const std::string& id = view.queue.cluster.nodes[static_cast<size_t>(node)].id;
    const std::string& serves = state.nodes.at(id).private_job;
    if (!serves.empty() && serves != job.id) own.push_back(node);
  }
  waiting->barred = With(own, barred, view);
  if (!other_data.empty()) waiting->avoided = With(other_data, waiting->barred, view);
}

// How many more of the job's array may run; -1: it is of none that says so.
int ArrayPlace(QueueView& view, const Job& job) {
  const ArrayElement& array = job.request.array();
  if (array.at_once() <= 0) return -1;
  const int next = static_cast<int>(view.queue.array_left.size());
  const auto [place, fresh] = view.array_places.try_emplace(array.id(), next);
  if (fresh) view.queue.array_left.push_back(array.at_once());
  return place->second;
}

// Workers of each node as the file says; of a job that was scaled that number on one node, or on as
// many nodes as make it up.
std::vector<int> CountsOf(const Job& job) {
  std::vector<int> of_file = job::RanksPerNode(job.spec());
  if (job.scaled_to == 0) return of_file;
  if (of_file.size() == 1) return {job.scaled_to};
  std::vector<int> counts;
  for (int left = job.scaled_to; left > 0; left -= counts.back()) {
    const size_t i = std::min(counts.size(), of_file.size() - 1);
    counts.push_back(std::clamp(of_file[i], 1, left));
  }
  return counts;
}

}  // namespace

std::shared_ptr<const Ask> AskOf(const Job& job) {
  const JobSpec& spec = job.spec();
  const Resources& resources = spec.resources();
  auto ask = std::make_shared<Ask>();
  ask->counts = CountsOf(job);
  ask->wanted = job.wanted_workers();
  ask->least = job::LeastWorkers(spec);
  ask->anywhere = job.scaled_to > 0;
  ask->per_node = resources.nproc_per_node();
  ask->most_of_node = job::MostOnAHost(spec);
  const std::string& device = resources.device();
  if (device == "cpu") ask->gpus = Ask::Gpus::kNever;
  if (absl::StartsWith(device, "cuda")) ask->gpus = Ask::Gpus::kAlways;
  int first = 0;
  if (absl::StartsWith(device, "cuda:") && absl::SimpleAtoi(device.substr(5), &first)) {
    ask->first_gpu = std::max(0, first);
  }
  ask->rank_zero = resources.rank0_node();
  ask->labels = {resources.labels().begin(), resources.labels().end()};
  if (job::IsUncounted(spec)) {
    ask->counted = resources.nproc_by();
    if (ask->counted == "cpu") ask->gpus = Ask::Gpus::kNever;
    ask->most = std::min(job::MostUsefulWorkers(spec), kMaxWorkers);
    ask->counts.assign(static_cast<size_t>(std::max(1, resources.nodes())), 1);
    ask->wanted = ask->least = static_cast<int>(ask->counts.size());
  }
  ask->priority = spec.priority();
  ask->limit = job::TimeLimit(spec) - job.ran;
  ask->user = job.request.user();
  ask->order = job.submit_order;
  SetShape(*ask);
  return ask;
}

bool HasProcess(const Slot& slot) {
  return slot.worker && !slot.unplaced() && !slot.worker->gone();
}

int SlotsOf(const Job& job) {
  return static_cast<int>(std::count_if(job.slots.begin(), job.slots.end(), IsItsOwn));
}

bool IsReady(const Job& job) {
  return job.state == PENDING && !job.ending && !job.held && job.after.empty() &&
         job.after_any.empty();
}

QueueView ViewQueue(const State& state, absl::Time now) {
  QueueView view;
  view.queue.now = now;
  AddNodes(state, now, view);
  std::unordered_map<std::string, Barred> by_labels;
  const std::map<std::string, double> uses = RecentUses(state, now);
  for (const auto& [id, job] : state.jobs) {
    if (job.final()) continue;
    if (job.state != PENDING) {
      AddRunning(job, view);
      const int array = ArrayPlace(view, job);
      view.queue.running.back().array = array;
      if (array >= 0) --view.queue.array_left[static_cast<size_t>(array)];
    } else if (IsReady(job)) {
      Waiting waiting;
      waiting.ask = job.ask.get();
      const auto use = uses.find(job.request.user());
      waiting.use = use == uses.end() ? 0 : use->second;
      waiting.overdue = now - job.ready_since >= kOverdueAfter;
      Bar(view, state, job, now, by_labels, &waiting);
      waiting.array = ArrayPlace(view, job);
      waiting.starts_at = job.starts_at;
      view.queue.waiting.push_back(std::move(waiting));
      view.waiting.push_back(&job);
    }
  }
  AddLeftBehind(state, now, view);
  return view;
}

QueueRules RulesOf(const Options& options) {
  QueueRules rules;
  rules.quotas = options.quotas;
  rules.quota = options.quota;
  rules.elastic_wait = options.elastic_wait;
  return rules;
}

}  // namespace lockstep::coordinator
