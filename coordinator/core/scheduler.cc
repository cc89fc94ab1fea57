// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/scheduler.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/job_machine.h"

namespace lockstep::coordinator {
namespace {

bool Takes(const Node& node, const Job& job) {
  if (node.session == 0) return false;
  return !node.is_private || node.private_job.empty() || node.private_job == job.id;
}

// Nodes that hold the job, the fullest first so that large holes are kept for large jobs. Empty: it
// does not fit. `empty`: as if nothing ran.
std::vector<Node*> Place(State& state, const Job& job, bool empty) {
  const size_t nodes = static_cast<size_t>(job.spec().resources().nodes());
  const int per_node = job.spec().resources().nproc_per_node();
  std::vector<std::pair<int, Node*>> fitting;
  for (auto& [id, node] : state.nodes) {
    if (!Takes(node, job)) continue;
    const int free = node.slots - (empty ? 0 : UsedSlots(state, node));
    if (free >= per_node) fitting.emplace_back(free, &node);
  }
  if (fitting.size() < nodes) return {};
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Node*> placed;
  for (size_t i = 0; i < nodes; ++i) placed.push_back(fitting[i].second);
  // Ranks follow the hosts' names, so that they are where one looks for them.
  std::sort(placed.begin(), placed.end(), [](const Node* a, const Node* b) {
    return std::tie(a->host, a->id) < std::tie(b->host, b->id);
  });
  return placed;
}

// "auto" is a GPU for each worker if the node has enough of them, else the CPU.
Device PickDevice(const Node& node, const JobSpec& spec, int local_rank) {
  std::vector<Device> gpus;
  Device cpu;
  cpu.set_kind("cpu");
  for (const Device& device : node.devices) {
    if (device.kind() == "cuda") gpus.push_back(device);
    if (device.kind() == "cpu") cpu = device;
  }
  const std::string& wish = spec.resources().device();
  const int per_node = spec.resources().nproc_per_node();
  const bool enough = static_cast<int>(gpus.size()) >= per_node;
  if (wish == "cpu" || (!absl::StartsWith(wish, "cuda") && !enough)) return cpu;
  // "cuda:2" begins with the third.
  int first = 0;
  if (absl::StartsWith(wish, "cuda:") && !absl::SimpleAtoi(wish.substr(5), &first)) first = 0;
  if (first + local_rank < static_cast<int>(gpus.size())) return gpus[first + local_rank];
  Device none;
  none.set_kind("cuda");  // the worker says that there is none
  return none;
}

void Start(Context& context, Job& job, const std::vector<Node*>& nodes) {
  const int per_node = job.spec().resources().nproc_per_node();
  std::string hosts;
  job.slots.clear();
  for (Node* node : nodes) {
    if (node->is_private) {
      node->private_job = job.id;
      context.changed_nodes.insert(node->id);
    }
    absl::StrAppend(&hosts, hosts.empty() ? "" : ", ", node->host);
    for (int local = 0; local < per_node; ++local) {
      const int index = static_cast<int>(job.slots.size());
      Slot& slot = job.slots.emplace_back();
      slot.node_id = node->id;
      slot.local_rank = local;
      slot.lives = 1;
      slot.worker.incarnation = absl::StrCat(job.id, ".", index, ".", slot.lives);
      slot.worker.slot = index;
      slot.worker.local_rank = local;
      slot.worker.node_id = node->id;
      slot.worker.host = node->host;
      slot.worker.device = PickDevice(*node, job.spec(), local);
      slot.worker.since = context.now;
    }
  }
  job.target_workers = static_cast<int>(job.slots.size());
  job.started = context.now;
  SetState(context, job, STARTING,
           absl::StrCat("starting ", Count(job.slots.size(), "worker"), " on ", hosts));
}

std::string WhyWaiting(const State& state, const Job& job, const std::string& ahead) {
  const auto& resources = job.spec().resources();
  int nodes = 0;
  int slots = 0;
  int free = 0;
  for (const auto& [id, node] : state.nodes) {
    if (!Takes(node, job)) continue;
    ++nodes;
    slots += node.slots;
    free += node.slots - UsedSlots(state, node);
  }
  std::string text = absl::StrCat("needs ", Count(job.wanted_workers(), "slot"), " on ",
                                  Count(resources.nodes(), "node"));
  if (resources.nodes() > 1) absl::StrAppend(&text, " (", resources.nproc_per_node(), " on each)");
  if (nodes == 0) return absl::StrCat(text, "; no node is connected");
  absl::StrAppend(&text, "; ", Count(nodes, "node"), " with ", Count(slots, "slot"),
                  nodes == 1 ? " is" : " are", " connected");
  if (free < slots) absl::StrAppend(&text, ", ", free, " free");
  if (!ahead.empty()) absl::StrAppend(&text, "; waits behind job ", ahead);
  return text;
}

}  // namespace

void PlaceLife(Context& context, const Job& job, Slot& slot) {
  State& state = context.state;
  const auto known = state.nodes.find(slot.node_id);
  Node* node = known == state.nodes.end() ? nullptr : &known->second;
  if (node == nullptr || node->session == 0) {
    for (auto& [id, other] : state.nodes) {
      if (!Takes(other, job) || UsedSlots(state, other) >= other.slots) continue;
      node = &other;
      slot.node_id = id;
      break;
    }
  }
  Worker& worker = slot.worker;
  worker.node_id = slot.node_id;
  worker.local_rank = slot.local_rank;
  if (node == nullptr) return;  // it waits for its node
  worker.host = node->host;
  worker.device = PickDevice(*node, job.spec(), slot.local_rank);
}

Slot* AddSlot(State& state, Job& job) {
  if (job.slots.size() >= static_cast<size_t>(kMaxWorkers)) return nullptr;
  for (const auto& [id, node] : state.nodes) {
    if (!Takes(node, job) || UsedSlots(state, node) >= node.slots) continue;
    Slot slot;
    slot.node_id = id;
    const auto taken = [&slot](const Slot& other) {
      return other.node_id == slot.node_id && other.local_rank == slot.local_rank;
    };
    while (std::any_of(job.slots.begin(), job.slots.end(), taken)) ++slot.local_rank;
    return &job.slots.emplace_back(slot);
  }
  return nullptr;
}

int UsedSlots(const State& state, const Node& node) {
  int used = 0;
  for (const auto& [id, job] : state.jobs) {
    for (const Slot& slot : job.slots) {
      used +=
          slot.worker.node_id == node.id && !slot.worker.gone() && !slot.worker.incarnation.empty();
    }
  }
  return used;
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
    const std::vector<Node*> nodes =
        ahead.empty() ? Place(context.state, *job, false) : std::vector<Node*>{};
    if (!nodes.empty()) {
      Start(context, *job, nodes);
      continue;
    }
    SetState(context, *job, PENDING, WhyWaiting(context.state, *job, ahead));
    if (ahead.empty() && !Place(context.state, *job, true).empty()) ahead = job->id;
  }
}

}  // namespace lockstep::coordinator
