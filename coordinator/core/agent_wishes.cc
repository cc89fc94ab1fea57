// SPDX-License-Identifier: Apache-2.0
// What the agents of nodes are told (sessions.h).
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/handover.h"
#include "coordinator/core/sessions.h"
#include "coordinator/core/tokens.h"

namespace lockstep::coordinator {
namespace {

// A finished worker may leave by itself for a while; one that gave up may say its last lines.
bool Desired(const Context& context, const Job& job, const Worker& worker) {
  if (worker.gone() || job.state == PENDING) return false;
  const Options& options = context.state.options;
  // What it is told is held as well, so it may not know yet that it shall leave.
  if (worker.leaving()) {
    return context.state.held_since || context.now < worker.since + options.leave;
  }
  if (job.ending && job.ending->kill) {
    return worker.failed && job.ending->target == FAILED && !job.final() &&
           context.now < job.ending->since + options.settle / 2;
  }
  if (job.final()) return context.now < job.ended + options.leave;
  return !IsLeftByItsAgent(context.state, job, worker);
}

void Assign(const State& state, const Job& job, const Worker& worker, DesiredWorkers& desired) {
  WorkerAssignment& assignment = *desired.add_workers();
  assignment.set_job_id(job.id);
  assignment.set_incarnation(worker.incarnation);
  assignment.set_slot(worker.slot);
  assignment.set_local_rank(worker.local_rank);
  assignment.set_run_dir(job.run_dir);
  assignment.set_submit_dir(job.request.submit_dir());
  assignment.set_source(job.request.source());
  assignment.set_workdir(job.request.workdir());
  *assignment.mutable_device() = worker.device;
  assignment.set_user(job.request.user());
  assignment.set_token(WorkerToken(state, worker.incarnation));
}

// The specs of jobs, each copied once for all agents that are told of it.
class Specs {
 public:
  std::shared_ptr<const JobSpec> Of(const Job& job) {
    std::shared_ptr<const JobSpec>& spec = specs_[&job];
    if (!spec) spec = std::make_shared<JobSpec>(job.spec());
    return spec;
  }

 private:
  std::unordered_map<const Job*, std::shared_ptr<const JobSpec>> specs_;
};

// What a node's agent is to know.
struct Wish {
  std::vector<std::pair<const Job*, const Worker*>> run;
  std::vector<const Job*> kill_jobs;
  std::vector<const Worker*> kill_workers;
};

// Adds what the job wishes of the node for its place there.
void WishFor(const Context& context, const Job& job, const Node& node, int place, Wish& wish) {
  if (static_cast<size_t>(place) >= job.slots.size()) return;
  const Slot& slot = job.slots[static_cast<size_t>(place)];
  if (slot.vacant() || slot.worker->gone() || slot.worker->node_id != node.id) return;
  if (Desired(context, job, *slot.worker)) {
    const bool waits = slot.worker->starts_later(context.now);
    if (!waits) wish.run.emplace_back(&job, &*slot.worker);
    if (!waits || !(slot.worker->leaving() || job.ending || job.final())) return;
  }
  const bool kills = job.ending && job.ending->kill;
  if (kills && (wish.kill_jobs.empty() || wish.kill_jobs.back() != &job)) {
    wish.kill_jobs.push_back(&job);
  }
  // Its agent may not know of it: then it says so, and the place is free.
  if (slot.worker->pid == 0) wish.kill_workers.push_back(&*slot.worker);
}

// And for the lives there that were replaced.
void WishForFormer(const Context& context, const Job& job, const Node& node, Wish& wish) {
  for (const Worker& worker : job.former) {
    if (worker.gone() || worker.node_id != node.id) continue;
    // One that gave up by itself may say its last lines.
    if (worker.failed && context.now < worker.failed_at + context.state.options.settle / 2) {
      wish.run.emplace_back(&job, &worker);
    } else {
      wish.kill_workers.push_back(&worker);
    }
  }
}

Wish WishOf(const Context& context, const Node& node) {
  Wish wish;
  for (auto at = node.places.begin(); at != node.places.end();) {
    const std::string& id = at->first;
    const Job* job = FindJob(context.state, id);
    for (; at != node.places.end() && at->first == id; ++at) {
      if (job != nullptr) WishFor(context, *job, node, at->second, wish);
    }
    if (job != nullptr) WishForFormer(context, *job, node, wish);
  }
  return wish;
}

// Equal for equal wishes: what belongs to an incarnation never changes.
std::string Summary(const Wish& wish) {
  std::string summary;
  for (const auto& [job, worker] : wish.run) absl::StrAppend(&summary, worker->incarnation, " ");
  for (const Job* job : wish.kill_jobs) absl::StrAppend(&summary, "kill ", job->id, " ");
  for (const Worker* worker : wish.kill_workers) {
    absl::StrAppend(&summary, "end ", worker->incarnation, " ");
  }
  return summary;
}

// Tells the agent what it is to know, if that is something else than it was told last.
void PushAgent(Context& context, Node& node, Specs& specs) {
  if (node.session == 0) return;
  const Wish wish = WishOf(context, node);
  std::string summary = absl::StrCat(Summary(wish), "\n", node.seen_address);
  if (node.sent == summary) return;
  node.sent = std::move(summary);
  ToAgent& command = context.effects.to_agents.emplace_back();
  command.session = node.session;
  DesiredWorkers& desired = *command.command.mutable_desired();
  desired.set_revision(++node.revision);
  desired.set_seen_address(node.seen_address);
  command.specs.reserve(wish.run.size());
  for (const auto& [job, worker] : wish.run) {
    Assign(context.state, *job, *worker, desired);
    command.specs.push_back(specs.Of(*job));
  }
  for (const Job* job : wish.kill_jobs) desired.add_kill_jobs(job->id);
  for (const Worker* worker : wish.kill_workers) desired.add_kill_workers(worker->incarnation);
}

}  // namespace

void PushAgents(Context& context) {
  std::map<std::string, Node>& nodes = context.state.nodes;
  Specs specs;
  if (context.state.unsettled.all_wishes) {
    for (auto& [id, node] : nodes) PushAgent(context, node, specs);
    return;
  }
  std::vector<std::string>& ids = context.wish_nodes;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  // Those of a large job lie side by side.
  auto next = nodes.begin();
  for (const std::string& id : ids) {
    if (next == nodes.end() || next->first != id) next = nodes.find(id);
    if (next != nodes.end()) PushAgent(context, (next++)->second, specs);
  }
}

}  // namespace lockstep::coordinator
