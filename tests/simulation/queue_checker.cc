// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/queue_checker.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/queue_pass.h"
#include "coordinator/core/queue_view.h"
#include "coordinator/core/run_time.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

using coordinator::Job;
using coordinator::Quota;
using coordinator::Slot;
using coordinator::State;
using coordinator::Worker;

// So long the first one may wait though it has room: nodes come back into sight, others are asked
// to leave.
constexpr absl::Duration kIdleAtMost = absl::Seconds(5);
// So long one may wait whom a pass over the queue would start: what time alone changes is looked at
// once a second.
constexpr absl::Duration kUnseenAtMost = absl::Seconds(2);

using Holds = std::map<std::string, int>;  // slots by node

void Add(const Worker& worker, Holds& holds) {
  if (!worker.node_id.empty() && !worker.gone()) ++holds[worker.node_id];
}

// Returns what the workers in the job's places have.
Holds PlacesOf(const Job& job) {
  Holds holds;
  for (const Slot& slot : job.slots) {
    if (slot.worker && !slot.unplaced()) Add(*slot.worker, holds);
  }
  return holds;
}

// Returns what those of them have that are not to leave: what others that come have then is free.
Holds ServingOf(const Job& job) {
  Holds holds;
  for (const Slot& slot : job.slots) {
    const bool stays = slot.wanted && slot.worker && slot.worker->serves();
    if (stays && !slot.unplaced()) Add(*slot.worker, holds);
  }
  return holds;
}

// Returns what its processes have, those that it has left behind as well.
Holds HoldsOf(const Job& job) {
  Holds holds = PlacesOf(job);
  for (const Worker& worker : job.former) Add(worker, holds);
  return holds;
}

std::map<std::string, int> FreeSlots(const State& state) {
  std::map<std::string, int> free;
  for (const auto& [id, node] : state.nodes) free[id] = node.slots;
  for (const auto& [id, job] : state.jobs) {
    for (const auto& [node, slots] : HoldsOf(job)) free[node] -= slots;
  }
  return free;
}

bool Runs(const Job& job) { return !job.final() && job.state != PENDING; }

// Workers that it has, or is to have; those who relieve others until these leave are none more.
int Wants(const Job& job) {
  int wanted = 0;
  for (const Slot& slot : job.slots) wanted += (slot.wanted && slot.relieves < 0) || slot.lent;
  return wanted;
}

// Who takes the part of one on a node that is left may be there for a while together with it.
bool HandsOver(const State& state, const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && state.drained.count(slot.worker->node_id) != 0;
  });
}

// Those of them that have no process.
int Lacks(const Job& job) {
  int lacking = 0;
  for (const Slot& slot : job.slots) {
    const bool has = slot.worker && !slot.unplaced() && !slot.worker->gone();
    lacking += !has && ((slot.wanted && slot.relieves < 0) || slot.lent);
  }
  return lacking;
}

// Returns the nodes that get work.
std::set<std::string> OpenNodes(const State& state, absl::Time now) {
  std::set<std::string> open;
  for (const auto& [id, node] : state.nodes) {
    if (coordinator::FactsOf(state, node, now).open) open.insert(id);
  }
  return open;
}

// Returns these and the others that are expected back, with the time until when.
std::map<std::string, absl::Time> AwaitedNodes(const State& state, absl::Time now) {
  std::map<std::string, absl::Time> nodes;
  for (const auto& [id, node] : state.nodes) {
    const coordinator::NodeFacts facts = coordinator::FactsOf(state, node, now);
    if (facts.open) nodes[id] = absl::InfinitePast();
    if (now < facts.awaited_until) nodes[id] = facts.awaited_until;
  }
  return nodes;
}

// Returns whether the job as a whole has room in `free`.
bool Fits(const State& state, const Job& job, const std::map<std::string, int>& free,
          absl::Time now) {
  const Resources& resources = job.spec().resources();
  int nodes = 0;
  for (const auto& [id, node] : state.nodes) {
    if (job.excluded.count(id) != 0 || !coordinator::FactsOf(state, node, now).open) continue;
    nodes += free.at(id) >= resources.nproc_per_node();
  }
  return nodes >= resources.nodes();
}

// Returns what room was kept for another job when `others`, of lower priority than `job`, started:
// they had nothing yet, and are asked after it. Nothing: none was, or `job` could start all the
// same.
std::optional<coordinator::Reservation> KeptBefore(const State& state,
                                                   const coordinator::QueueView& view,
                                                   const Job& job,
                                                   const std::vector<const Job*>& others) {
  coordinator::Queue queue = view.queue;
  std::vector<const Job*> waiting;
  queue.waiting.clear();
  for (size_t i = 0; i < view.waiting.size(); ++i) {
    if (view.waiting[i]->spec().priority() < job.spec().priority()) continue;
    queue.waiting.push_back(view.queue.waiting[i]);
    waiting.push_back(view.waiting[i]);
  }
  queue.running.clear();
  for (size_t i = 0; i < view.running.size(); ++i) {
    const coordinator::Running& running = view.queue.running[i];
    if (std::find(others.begin(), others.end(), view.running[i]) == others.end()) {
      queue.running.push_back(running);
      continue;
    }
    for (const coordinator::Taken& hold : running.holds) {
      coordinator::Give(queue.cluster, hold, queue.cluster.free);
    }
  }
  coordinator::Decisions decisions =
      coordinator::RunPass(coordinator::RulesOf(state.options), queue);
  const auto is_job = [&](int place) { return waiting[static_cast<size_t>(place)] == &job; };
  for (const coordinator::Decisions::Start& start : decisions.starts) {
    if (is_job(start.waiting)) return std::nullopt;
  }
  if (decisions.reservation && is_job(decisions.reservation->waiting)) return std::nullopt;
  return std::move(decisions.reservation);
}

// The nodes' slots for `job`, when it is not to delay the one for whom `kept` is: `free`, and what
// those of `others` have, which would start after it. All, if it has ended by then.
std::map<std::string, int> RoomFor(const Job& job, const std::vector<const Job*>& others,
                                   const coordinator::QueueView& view,
                                   const std::optional<coordinator::Reservation>& kept,
                                   const std::map<std::string, int>& free) {
  std::map<std::string, int> room = free;
  for (const Job* other : others) {
    for (const auto& [node, slots] : PlacesOf(*other)) room[node] += slots;
  }
  if (!kept || view.queue.now + job.ask->limit <= kept->when) return room;
  for (size_t i = 0; i < view.queue.cluster.nodes.size(); ++i) {
    int& slots = room[view.queue.cluster.nodes[i].id];
    slots = std::min(slots, kept->leave[i].slots);
  }
  return room;
}

bool IsWithinQuota(const State& state, const Job& job) {
  const coordinator::QueueRules rules = coordinator::RulesOf(state.options);
  const Quota& quota = coordinator::QuotaOf(rules, job.request.user());
  int slots = job.wanted_workers(), jobs = 1;
  for (const auto& [id, other] : state.jobs) {
    if (other.request.user() != job.request.user() || other.final()) continue;
    jobs += Runs(other);
    int held = 0;
    for (const auto& [node, count] : HoldsOf(other)) held += count;
    slots += held + (Runs(other) ? Lacks(other) : 0);
  }
  return (quota.slots == 0 || slots <= quota.slots) && (quota.jobs == 0 || jobs <= quota.jobs);
}

}  // namespace

void QueueChecker::OnBegin() {
  before_.clear();
  waited_.clear();
  open_.clear();
  serial_ = 0;
  idle_.clear();
  could_start_.clear();
  kept_ = Kept{};
}

void QueueChecker::OnProcess(const AgentProcess& agent) const {
  int alive = 0;
  std::string names;
  for (const auto& [incarnation, worker] : agent.workers()) {
    if (!worker->alive() || worker->killed()) continue;
    ++alive;
    absl::StrAppend(&names, names.empty() ? "" : ", ", incarnation);
  }
  if (alive <= world_->options.slots) return;
  world_->checker.Fail(absl::StrCat(agent.host()->name, " runs ", names, " and has ",
                                    world_->options.slots, " slots"));
}

void QueueChecker::AfterStep(const CoordinatorProcess& coordinator) {
  const State& state = coordinator.state();
  if (coordinator.holding() || state.unsettled.any() || state.unsettled.schedule) {
    idle_.clear();
    could_start_.clear();
    return;
  }
  const absl::Time now = coordinator.Now();
  CheckQuotas(state);
  CheckStarts(state, now);
  CheckIdle(state, now);
  if (coordinator.steps() % 8 == 0) CheckKept(state, now);
  before_.clear();
  waited_.clear();
  open_ = OpenNodes(state, now);
  serial_ = state.serial;
  for (const auto& [id, job] : state.jobs) {
    before_[id] = job.state;
    if (coordinator::IsReady(job)) waited_.insert(id);
  }
}

void QueueChecker::CheckQuotas(const State& state) const {
  std::map<std::string, int> slots, jobs;
  for (const auto& [id, job] : state.jobs) {
    if (!Runs(job)) continue;
    ++jobs[job.request.user()];
    int has = 0;
    for (const Slot& slot : job.slots) {
      has += slot.wanted && slot.relieves < 0 && slot.worker && !slot.unplaced() &&
             !slot.worker->gone();
    }
    // What it is yet to get, or to get back, is its user's as well.
    const bool leaves = job.drain || job.ending;
    const int counts = leaves ? has : std::max(has, Wants(job));
    slots[job.request.user()] +=
        HandsOver(state, job) ? std::min(counts, job.target_workers) : counts;
  }
  const coordinator::QueueRules rules = coordinator::RulesOf(state.options);
  for (const auto& [user, count] : jobs) {
    const Quota& quota = coordinator::QuotaOf(rules, user);
    if (quota.jobs > 0 && count > quota.jobs) {
      world_->checker.Fail(
          absl::StrCat(user, " runs ", count, " jobs and may run ", quota.jobs, " at once"));
    }
    if (quota.slots > 0 && slots[user] > quota.slots) {
      world_->checker.Fail(
          absl::StrCat(user, " has ", slots[user], " slots and may have ", quota.slots));
    }
  }
}

void QueueChecker::CheckStarts(const State& state, absl::Time now) {
  std::vector<const Job*> started;
  for (const auto& [id, job] : state.jobs) {
    const auto before = before_.find(id);
    if (before != before_.end() && before->second == PENDING && job.state == STARTING) {
      started.push_back(&job);
    }
  }
  if (started.empty()) return;
  const std::map<std::string, int> free = FreeSlots(state);
  const coordinator::QueueView view = coordinator::ViewQueue(state, now);
  // Of several events the first ones may have let a job start, and the others have opened nodes.
  std::set<std::string> opened;
  if (state.serial > serial_ + 1) {
    const std::set<std::string> open = OpenNodes(state, now);
    std::set_difference(open.begin(), open.end(), open_.begin(), open_.end(),
                        std::inserter(opened, opened.end()));
  }
  const auto kept_for_started = [&](const Job& waiting) {
    return state.serial > serial_ + 1 &&
           std::any_of(started.begin(), started.end(), [&](const Job* job) {
             return job->spec().priority() >= waiting.spec().priority();
           });
  };
  for (const auto& [id, waiting] : state.jobs) {
    // Who was held or waited for another one when it was last looked at may have been too late.
    if (waited_.count(id) == 0 || !coordinator::IsReady(waiting)) continue;
    if (!IsWithinQuota(state, waiting)) continue;
    std::vector<const Job*> lower;
    std::copy_if(started.begin(), started.end(), std::back_inserter(lower), [&](const Job* job) {
      return job->spec().priority() < waiting.spec().priority();
    });
    // Room was kept for one that has started after those of lower priority, by a later event.
    if (lower.empty() || kept_for_started(waiting)) continue;
    std::map<std::string, int> room =
        RoomFor(waiting, lower, view, KeptBefore(state, view, waiting, lower), free);
    for (const std::string& node : opened) room[node] = 0;
    if (!Fits(state, waiting, room, now)) continue;
    world_->checker.Fail(absl::StrCat("job ", lower.back()->id, " starts where ", id,
                                      " of higher priority has room and waits: ", waiting.reason));
  }
}

void QueueChecker::CheckIdle(const State& state, absl::Time now) {
  std::vector<const Job*> first;  // those of which one is the first
  for (const auto& [id, job] : state.jobs) {
    if (!coordinator::IsReady(job)) continue;
    if (!first.empty() && job.spec().priority() < first.front()->spec().priority()) continue;
    if (!first.empty() && job.spec().priority() > first.front()->spec().priority()) first.clear();
    first.push_back(&job);
  }
  const std::map<std::string, int> free = FreeSlots(state);
  const bool idle = !first.empty() && std::all_of(first.begin(), first.end(), [&](const Job* job) {
    return IsWithinQuota(state, *job) && Fits(state, *job, free, now);
  });
  if (!idle) return idle_.clear();
  const std::string& id = first.front()->id;
  const absl::Time since = idle_.try_emplace(id, now).first->second;
  std::erase_if(idle_, [&](const auto& entry) { return entry.first != id; });
  if (now - since <= kIdleAtMost) return;
  world_->checker.Fail(absl::StrCat("job ", id, " waits and has room: ", first.front()->reason));
}

void QueueChecker::CheckKept(const State& state, absl::Time now) {
  coordinator::QueueView view = coordinator::ViewQueue(state, now);
  const coordinator::Decisions decisions =
      coordinator::RunPass(coordinator::RulesOf(state.options), view.queue);
  const std::string next = decisions.starts.empty()
                               ? ""
                               : view.waiting[static_cast<size_t>(decisions.starts[0].waiting)]->id;
  if (std::exchange(could_start_, next) != next) could_start_since_ = now;
  if (!next.empty() && now - could_start_since_ > kUnseenAtMost) {
    world_->checker.Fail(absl::StrCat("job ", next, " could start, and nobody looks at the queue"));
  }
  Kept kept;
  kept.nodes = AwaitedNodes(state, now);
  for (const auto& [id, job] : state.jobs) {
    Holds holds = HoldsOf(job);
    if (holds.empty()) continue;
    kept.running[id] = {job.started, std::move(holds), ServingOf(job),
                        now + (job.ask->limit - coordinator::RanFor(job, now))};
  }
  if (decisions.reservation && decisions.starts.empty()) {
    const Job& job = *view.waiting[static_cast<size_t>(decisions.reservation->waiting)];
    if (job.excluded.empty()) kept.job = job.id;
    kept.when = decisions.reservation->when;
  }
  // Who ran before has what it had, unless it gets what it lacked, and ends as soon, unless it
  // waited for a node meanwhile; who has started since, also again after it had stopped for another
  // one, comes after the one that waits.
  const bool others = std::any_of(kept.running.begin(), kept.running.end(), [&](const auto& entry) {
    const auto before = kept_.running.find(entry.first);
    if (before != kept_.running.end() && before->second.started == entry.second.started) {
      return before->second.holds != entry.second.holds ||
             before->second.serving != entry.second.serving ||
             entry.second.ends > before->second.ends + absl::Milliseconds(1);
    }
    return !kept.job.empty() && state.jobs.at(entry.first).spec().priority() >=
                                    state.jobs.at(kept.job).spec().priority();
  });
  const bool same = !kept.job.empty() && kept.job == kept_.job && kept.nodes == kept_.nodes;
  if (same && !others && kept_.when != absl::InfiniteFuture() &&
      kept.when > std::max(kept_.when, now) + absl::Milliseconds(1)) {
    world_->checker.Fail(absl::StrCat("room for job ", kept.job, " is there ",
                                      absl::FormatDuration(kept.when - kept_.when),
                                      " later than was foreseen, as others have started"));
  }
  kept_ = std::move(kept);
}

void QueueChecker::AtEnd(const CoordinatorProcess& coordinator) const {
  for (const auto& [id, job] : coordinator.state().jobs) {
    for (const auto& [node, slots] : HoldsOf(job)) {
      world_->checker.Fail(absl::StrCat("job ", id, " has ended and ", slots,
                                        " of its processes on ", node, " are not known to have"));
    }
  }
}

}  // namespace lockstep::simulation
