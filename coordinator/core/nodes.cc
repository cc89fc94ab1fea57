// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/nodes.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

bool IsHere(const Node& node, const Worker& worker) {
  return worker.node_id == node.id && !worker.gone();
}

// The worker of the job's place; null: there is none.
const Worker* WorkerAt(const Job& job, int place) {
  if (static_cast<size_t>(place) >= job.slots.size()) return nullptr;
  const Slot& slot = job.slots[static_cast<size_t>(place)];
  return slot.worker ? &*slot.worker : nullptr;
}

// Calls `visit` with every worker on the node that has not ended.
template <typename Visit>
void ForEachWorker(const State& state, const Node& node, Visit visit) {
  for (const auto& [id, place] : node.places) {
    const auto job = state.jobs.find(id);
    const Worker* worker = job == state.jobs.end() ? nullptr : WorkerAt(job->second, place);
    if (worker != nullptr && IsHere(node, *worker)) visit(*worker);
  }
}

// The same with those that were replaced and have not ended, but for those of the job `but`, which
// does not wait for them.
template <typename Visit>
void ForEachFormer(const State& state, const Node& node, const Job* but, Visit visit) {
  for (const std::string& id : JobsOn(node)) {
    const auto job = state.jobs.find(id);
    if (job == state.jobs.end() || &job->second == but) continue;
    for (const Worker& worker : job->second.former) {
      if (IsHere(node, worker)) visit(worker);
    }
  }
}

// Returns whether the job goes on and its place is on the node, with a worker or without one (its
// next one comes here, too, unless it was given up), or the worker of the place still is.
bool GoesOnHere(const Job& job, const Node& node, int place) {
  if (job.final() || static_cast<size_t>(place) >= job.slots.size()) return false;
  const Slot& slot = job.slots[static_cast<size_t>(place)];
  if (slot.worker && IsHere(node, *slot.worker)) return true;
  const bool filled_again = slot.wanted || slot.returns || slot.lent;
  return slot.node_id == node.id && (slot.worker || filled_again);
}

// Returns whether the worker of the place, or one that it had before, is still there.
bool IsStillHere(const State& state, const Node& node, const std::string& id, int place) {
  const auto found = state.jobs.find(id);
  if (found == state.jobs.end()) return false;
  const Job& job = found->second;
  if (GoesOnHere(job, node, place)) return true;
  const Worker* worker = WorkerAt(job, place);
  if (worker != nullptr && IsHere(node, *worker)) return true;
  return std::any_of(job.former.begin(), job.former.end(), [&](const Worker& former) {
    return former.slot == place && IsHere(node, former);
  });
}

using Gpus = std::vector<const Device*>;

Gpus GpusOf(const Node& node) {
  Gpus gpus;
  for (const Device& device : node.devices) {
    if (device.kind() == "cuda") gpus.push_back(&device);
  }
  return gpus;
}

// By place in the node's list, which GPUs no worker has. One that the agent lists k times is for k
// workers.
std::vector<bool> FreeGpus(const State& state, const Job* but, const Node& node, const Gpus& gpus) {
  std::map<std::string, int> used;
  const auto count = [&](const Worker& worker) {
    if (worker.on_gpu) ++used[worker.device.uuid()];
  };
  ForEachWorker(state, node, count);
  ForEachFormer(state, node, but, count);
  std::vector<bool> free(gpus.size(), true);
  for (size_t i = 0; i < gpus.size(); ++i) free[i] = used[gpus[i]->uuid()]-- <= 0;
  return free;
}

// Returns how many workers the job has on the node.
int WorkersOn(const Job& job, const Node& node) {
  return static_cast<int>(
      std::count_if(node.places.begin(), node.places.end(), [&](const auto& at) {
        const Worker* const worker = at.first == job.id ? WorkerAt(job, at.second) : nullptr;
        return worker != nullptr && IsHere(node, *worker);
      }));
}

}  // namespace

void NotePlace(const State& state, Node& node, const std::string& job_id, int place) {
  if (node.places.size() > 2 * static_cast<size_t>(std::max(1, node.slots))) {
    std::erase_if(node.places, [&](const auto& entry) {
      return !IsStillHere(state, node, entry.first, entry.second);
    });
  }
  node.places.emplace(job_id, place);
}

std::vector<std::string> JobsOn(const Node& node) {
  std::vector<std::string> jobs;
  for (const auto& [id, place] : node.places) {
    if (jobs.empty() || jobs.back() != id) jobs.push_back(id);
  }
  return jobs;
}

bool InSight(const State& state, const Node& node, absl::Time now) {
  return node.session != 0 && now - node.last_contact <= state.options.node_silent_after;
}

bool NodeInSight(const State& state, const Worker& worker, absl::Time now) {
  const auto node = state.nodes.find(worker.node_id);
  return node != state.nodes.end() && InSight(state, node->second, now);
}

bool IsExcluded(const Job& job, const std::string& node_id, absl::Time now) {
  const auto found = job.excluded.find(node_id);
  return found != job.excluded.end() && now < found->second.until;
}

bool HadOtherData(const Job& job, const std::string& node_id) {
  const auto found = job.excluded.find(node_id);
  return found != job.excluded.end() && found->second.other_data;
}

int UsedSlots(const State& state, const Node& node) {
  int used = 0;
  ForEachWorker(state, node, [&](const Worker&) { ++used; });
  return used;
}

bool HasWork(const State& state, const Node& node) {
  return std::any_of(node.places.begin(), node.places.end(), [&](const auto& at) {
    const auto job = state.jobs.find(at.first);
    return job != state.jobs.end() && GoesOnHere(job->second, node, at.second);
  });
}

bool HasProcesses(const State& state, const Node& node) {
  int former = 0;
  ForEachFormer(state, node, nullptr, [&](const Worker&) { ++former; });
  return former > 0 || UsedSlots(state, node) > 0;
}

namespace {

void MarkDrained(State& state, const Node& node) {
  if (node.drain || node.keeps) {
    state.drained.insert(node.id);
  } else {
    state.drained.erase(node.id);
  }
}

}  // namespace

void SetDrain(State& state, Node& node, std::optional<DrainOrder> order) {
  node.drain = std::move(order);
  MarkDrained(state, node);
}

void SetKeeps(State& state, Node& node, bool keeps) {
  node.keeps = keeps;
  MarkDrained(state, node);
}

bool OnLeaving(const State& state, const Worker& worker) {
  const auto node = state.nodes.find(worker.node_id);
  return node != state.nodes.end() && node->second.stopping && node->second.keeps;
}

std::string WhyNoWork(const Node& node, absl::Time now) {
  if (node.drain) {
    return absl::StrCat("it is drained", node.drain->reason.empty() ? "" : ": ",
                        node.drain->reason);
  }
  if (node.stopping) return "its agent leaves";
  if (!node.problem.empty()) return node.problem;
  if (!IsLeftOut(node.trust, now)) return "";
  const absl::TimeZone utc = absl::UTCTimeZone();
  const bool today = absl::ToCivilDay(node.trust.until, utc) == absl::ToCivilDay(now, utc);
  return absl::StrCat(
      "left out until ",
      absl::FormatTime(today ? "%H:%M:%S UTC" : "%Y-%m-%d %H:%M:%S UTC", node.trust.until, utc),
      ": ", node.trust.reason);
}

void NoteNodeFailure(Context& context, const std::string& node_id, const std::string& what,
                     const std::string& job_id) {
  const auto found = context.state.nodes.find(node_id);
  if (found == context.state.nodes.end() || found->second.is_private) return;
  Node& node = found->second;
  const absl::Duration span =
      NoteFailure(context.state.options.trust, {context.now, what, job_id}, node.trust);
  context.changed_nodes.insert(node_id);
  if (span == absl::ZeroDuration()) return;
  for (const auto& entry : context.state.jobs) {
    const Job& job = entry.second;
    const bool here = std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
      return slot.node_id == node_id && !job.final();
    });
    if (!here) continue;
    AppendNotice(context, job,
                 absl::StrCat("no job starts anything on ", node_id, " for ", DurationText(span),
                              ": ", node.trust.reason));
  }
}

namespace {

bool TakesWork(const State& state, const Node& node, absl::Time now) {
  return InSight(state, node, now) && !node.drain && !node.stopping && node.problem.empty() &&
         !IsLeftOut(node.trust, now);
}

// Returns whether the node has the labels that the job asks for, and serves no other job alone.
bool Serves(const Node& node, const Job& job) {
  if (node.is_private && !node.private_job.empty() && node.private_job != job.id) return false;
  const std::map<std::string, std::string>& labels = job.ask->labels;
  return std::includes(node.labels.begin(), node.labels.end(), labels.begin(), labels.end());
}

}  // namespace

NodeFacts FactsOf(const State& state, const Node& node, absl::Time now) {
  NodeFacts facts;
  facts.id = node.id;
  facts.host = node.host;
  facts.open = TakesWork(state, node, now);
  if (!facts.open && WhyNoWork(node, now).empty()) {
    facts.awaited_until = node.last_contact + state.options.node_lost_after;
  }
  facts.is_private = node.is_private;
  facts.slots = node.slots;
  facts.gpus = static_cast<int>(GpusOf(node).size());
  facts.labels = node.labels;
  return facts;
}

Free FreeOn(const State& state, const Node& node, const Job* job) {
  Free free;
  free.slots = node.slots - UsedSlots(state, node);
  ForEachFormer(state, node, job, [&](const Worker&) { --free.slots; });
  const Gpus gpus = GpusOf(node);
  if (gpus.empty()) return free;
  const std::vector<bool> unused = FreeGpus(state, job, node, gpus);
  for (size_t i = 0; i < std::min<size_t>(unused.size(), 64); ++i) {
    if (unused[i]) free.gpus |= uint64_t{1} << i;
  }
  return free;
}

void AddGpuPlaces(const State& state, const Node& node,
                  std::unordered_map<const Worker*, uint64_t>* places) {
  const Gpus gpus = GpusOf(node);
  if (gpus.empty()) return;
  uint64_t taken = 0;
  const auto add = [&](const Worker& worker) {
    if (!worker.on_gpu) return;
    for (size_t i = 0; i < std::min<size_t>(gpus.size(), 64); ++i) {
      const uint64_t place = uint64_t{1} << i;
      if ((taken & place) != 0 || gpus[i]->uuid() != worker.device.uuid()) continue;
      taken |= place;
      places->emplace(&worker, place);
      return;
    }
  };
  ForEachWorker(state, node, add);
  ForEachFormer(state, node, nullptr, add);
}

bool IsFor(const Job& job, const Node& node) {
  if (!Serves(node, job)) return false;
  NodeFacts facts;
  facts.is_private = node.is_private;
  facts.slots = node.slots;
  facts.gpus = static_cast<int>(GpusOf(node).size());
  const NodePool pool{{facts}, {}};
  return Room(*job.ask, facts, Whole(pool).front()) > 0;
}

int Room(const State& state, const Job& job, const Node& node, absl::Time now) {
  if (!TakesWork(state, node, now)) return 0;
  if (IsExcluded(job, node.id, now) || !Serves(node, job)) return 0;
  const int room = Room(*job.ask, FactsOf(state, node, now), FreeOn(state, node, &job));
  const int most = job.ask->most_of_node;
  return node.slots <= most ? room : std::min(room, most - WorkersOn(job, node));
}

Device PickDevice(const State& state, const Job& job, const Node& node, int local_rank) {
  const Gpus gpus = GpusOf(node);
  Device device;
  if (!UsesGpus(*job.ask, static_cast<int>(gpus.size()))) {
    device.set_kind("cpu");
    for (const Device& other : node.devices) {
      if (other.kind() == "cpu") device = other;
    }
    return device;
  }
  const auto first = static_cast<size_t>(job.ask->first_gpu);
  const std::vector<bool> free = FreeGpus(state, &job, node, gpus);
  const size_t own = first + static_cast<size_t>(local_rank);
  if (own < gpus.size() && free[own]) return *gpus[own];
  for (size_t i = first; i < gpus.size(); ++i) {
    if (free[i]) return *gpus[i];
  }
  device.set_kind("cuda");
  return device;
}

void SetDevice(Device device, Worker& worker) {
  worker.on_gpu = device.kind() == "cuda";
  worker.device = std::move(device);
}

Allocation AllocationOf(const JobSpec& spec, const Device& device) {
  Allocation allocation;
  allocation.set_cpus(std::max(1, spec.resources().cpus_per_proc()));
  allocation.set_memory(spec.resources().memory());
  if (device.kind() == "cuda" && !device.uuid().empty()) allocation.add_gpus(device.uuid());
  return allocation;
}

}  // namespace lockstep::coordinator
