// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/core.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/context.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/health.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/queue_requests.h"
#include "coordinator/core/retention.h"
#include "coordinator/core/run_time.h"
#include "coordinator/core/scale.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/sessions.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/straggler.h"
#include "coordinator/core/tokens.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kWatchEvery = absl::Milliseconds(100);
constexpr absl::Duration kLookAtNodesEvery = absl::Seconds(1);
constexpr absl::Duration kLookForNodeEvery = absl::Seconds(1);
// At the queue, after what a look at it has ended.
constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(250);
// Settling that takes less is done after each event.
constexpr absl::Duration kLeastSpacing = absl::Milliseconds(1);

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

void Dispatch(Context& context, const Event& event) {
  std::visit(
      Overloaded{
          [&](const Submitted& e) { context.effects.reply = Submit(context, e); },
          [&](const CancelRequested& e) { context.effects.reply = Cancel(context, e); },
          [&](const ScaleRequested& e) { context.effects.reply = Scale(context, e); },
          [&](const DrainRequested& e) { context.effects.reply = DrainNode(context, e); },
          [&](const UndrainRequested& e) { context.effects.reply = UndrainNode(context, e); },
          [&](const HoldRequested& e) { context.effects.reply = HoldJob(context, e); },
          [&](const TokenCreated& e) { context.effects.reply = CreateToken(context, e); },
          [&](const TokenRevoked& e) { context.effects.reply = RevokeToken(context, e); },
          [&](const AgentSaid& e) { OnAgentSaid(context, e); },
          [&](const AgentGone& e) { OnAgentGone(context, e); },
          [&](const WorkerSaid& e) { OnWorkerSaid(context, e); },
          [&](const WorkerGone& e) { OnWorkerGone(context, e); },
          [](const Tick&) {},
          [&](const Held&) { Hold(context); },
          [&](const Released&) { Release(context); },
      },
      event);
}

void SendProgress(Context& context, Job& job) {
  if (!job.progress_pending || job.final()) return;
  if (context.now < job.progress_sent + context.state.options.progress_every) return;
  job.progress_pending = false;
  job.progress_sent = context.now;
  JobEvent event;
  *event.mutable_progress() = job.progress;
  AppendEvent(context, job, std::move(event));
}

// When the job is to be looked at again though nothing happens.
absl::Time NextCheck(const Context& context, const Job& job) {
  if (job.state == PENDING) return absl::InfiniteFuture();  // State::schedule_at
  if (job.final()) {
    const absl::Time left = job.ended + context.state.options.leave;
    return AllGone(job) || context.now >= left ? absl::InfiniteFuture() : left;
  }
  const absl::Duration detection = FailureDetection(job);
  absl::Time next =
      context.now + std::clamp(detection / 20, absl::Milliseconds(10), absl::Milliseconds(250));
  if (job.progress_pending) {
    next = std::min(next, job.progress_sent + context.state.options.progress_every);
  }
  if (job.ending) next = std::min(next, context.now + absl::Milliseconds(20));
  if (context.now < job.starts_again_at) next = std::min(next, job.starts_again_at);
  return next;
}

// The pause before a start is over: the agents are told of who has waited for that.
void EndPause(Context& context, Job& job) {
  if (job.starts_again_at == absl::InfinitePast() || context.now < job.starts_again_at) return;
  job.starts_again_at = absl::InfinitePast();
  int started = 0;
  std::vector<std::string> hosts;
  for (const Slot& slot : job.slots) {
    if (!slot.worker || slot.worker->phase != Worker::Phase::kPlaced) continue;
    context.wish_nodes.push_back(slot.worker->node_id);
    ++started;
    const std::string& host = slot.worker->host;
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  // They are what it waits for from now on.
  if (job.state == STARTING && started > 0) {
    SetState(context, job, STARTING, SayStarting(started, hosts));
  }
}

// Takes the transitions of the jobs touched so far and adds them to `looked_at`.
void AdvanceTouched(Context& context, std::set<std::string>& looked_at) {
  const std::set<std::string> touched = context.touched_jobs;
  for (const std::string& id : touched) {
    Job& job = context.state.jobs.at(id);
    EndPause(context, job);  // before another one begins
    CheckHealth(context, job);
    Advance(context, job);
    // They look at every member, so not at every heartbeat of one.
    if (job.final() || context.now >= job.watched + kWatchEvery) {
      job.watched = context.now;
      WatchStall(context, job);
      WatchStragglers(context, job);
    }
  }
  looked_at.insert(touched.begin(), touched.end());
  context.touched_jobs.clear();
}

// Time alone may give the workers of a running job nodes: an exclusion ends.
void LookForNode(Context& context, Job& job) {
  if (!WaitsForNode(job) || context.now < job.look_for_node_at) return;
  job.look_for_node_at = context.now + kLookForNodeEvery;
  context.schedule = true;
}

// Notes which agents are to be told more: it follows from rows, and from the time where somebody is
// on the way out.
void NoteWishes(Context& context, const Job& job) {
  const bool ends = job.final() || job.ending.has_value();
  for (const Slot& slot : job.slots) {
    if (slot.worker && (ends || slot.worker->leaving())) {
      context.wish_nodes.push_back(slot.worker->node_id);
    }
  }
  for (const Worker& worker : job.former) context.wish_nodes.push_back(worker.node_id);
}

// How far apart the state is settled: what it takes is in proportion to what there is.
absl::Duration Spacing(const State& state) {
  const absl::Duration spacing = state.options.settle_spacing * state.size;
  return spacing < kLeastSpacing ? absl::ZeroDuration() : spacing;
}

// A user waits for the answer, and the row of the request goes when its outcome is there; nothing
// waits at the end of a hold, or in a step that is only about time.
bool SettlesAtOnce(const Event& event) {
  return !std::holds_alternative<AgentSaid>(event) && !std::holds_alternative<AgentGone>(event) &&
         !std::holds_alternative<WorkerSaid>(event) && !std::holds_alternative<WorkerGone>(event);
}

// A pass over the queue takes its time for each job that waits, so many events have one together.
// Jobs that recover do not wait for it.
void LookAtQueue(Context& context, const std::set<std::string>& looked_at) {
  State& state = context.state;
  const absl::Duration spacing = state.options.pass_spacing * state.waiting;
  const absl::Time due = state.scheduled + spacing;
  if (spacing < kLeastSpacing || context.now >= due) return Schedule(context);
  state.schedule_at = due;
  for (const std::string& id : looked_at) PlaceRecovering(context, state.jobs.at(id));
}

// A node that falls silent takes room from who counted on it, and no message says so. One that
// speaks again is seen by what it says.
void LookForSilentNodes(Context& context) {
  State& state = context.state;
  if (context.now < state.looked_at_nodes + kLookAtNodesEvery) return;
  state.looked_at_nodes = context.now;
  std::set<std::string> silent;
  for (const auto& [id, node] : state.nodes) {
    if (node.session != 0 && !InSight(state, node, context.now)) silent.insert(id);
  }
  const bool more = !std::includes(state.silent_nodes.begin(), state.silent_nodes.end(),
                                   silent.begin(), silent.end());
  if (more) context.schedule = true;
  state.silent_nodes = std::move(silent);
}

// Returns what is to be done now, with what waited for it.
Effects Settle(Context& context) {
  State& state = context.state;
  TouchOwed(context);
  ForgetNodes(context);
  LookForSilentNodes(context);
  for (const auto& [at, id] : state.checks) {
    if (at > context.now) break;
    context.touched_jobs.insert(id);
  }
  std::set<std::string> looked_at;
  AdvanceTouched(context, looked_at);
  for (const std::string& id : looked_at) LookForNode(context, state.jobs.at(id));
  if (context.schedule || context.now >= state.schedule_at) {
    context.schedule = false;
    LookAtQueue(context, looked_at);
    AdvanceTouched(context, looked_at);
    // A job that has ended, or waits again, by what came of it.
    if (context.schedule) {
      state.schedule_at = std::min(state.schedule_at, context.now + kLookAgainAfter);
    }
  }
  for (const std::string& id : looked_at) {
    Job& job = state.jobs.at(id);
    SendProgress(context, job);
    PushWorkers(context, job);
    SetCheck(state, job, NextCheck(context, job));
    CountUse(context, job);
    NoteWait(job, context.now);
    const auto slots = static_cast<int64_t>(job.slots.size());
    state.slots += slots - std::exchange(job.noted_slots, slots);
  }
  CollectRows(context, looked_at);
  for (const std::string& id : looked_at) NoteWishes(context, state.jobs.at(id));
  ForgetOld(context);
  PushAgents(context);
  state.settled = context.now;
  state.size = static_cast<int64_t>(state.nodes.size() + state.jobs.size()) + state.slots;
  state.wake_at = state.schedule_at;
  if (!state.checks.empty()) {
    state.wake_at = std::min(state.wake_at, state.checks.begin()->first);
  }
  // Time must pass for a silent node to be known as silent when the next job comes.
  if (!state.agent_sessions.empty()) {
    state.wake_at = std::min(state.wake_at, context.now + kLookAtNodesEvery);
  }
  Effects effects = std::move(state.unsettled.effects);
  effects.wake_at = state.wake_at;
  state.unsettled = Unsettled{};
  return effects;
}

}  // namespace

void AppendEffects(Effects& effects, Effects later) {
  const auto append = [](auto& all, auto& more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  };
  append(effects.rows, later.rows);
  append(effects.new_jobs, later.new_jobs);
  append(effects.forgotten_jobs, later.forgotten_jobs);
  append(effects.to_agents, later.to_agents);
  append(effects.to_workers, later.to_workers);
  append(effects.events, later.events);
  effects.wake_at = later.wake_at;
}

WorkerCommand Whole(ToWorker message) {
  if (message.generation) *message.command.mutable_generation() = *message.generation;
  return std::move(message.command);
}

AgentCommand Whole(ToAgent message) {
  for (size_t i = 0; i < message.specs.size(); ++i) {
    auto* worker = message.command.mutable_desired()->mutable_workers(static_cast<int>(i));
    *worker->mutable_spec() = *message.specs[i];
  }
  return std::move(message.command);
}

bool Supersedes(const AgentCommand& newer, const AgentCommand& older) {
  return newer.has_desired() && older.has_desired();
}

bool Supersedes(const WorkerCommand& /*newer*/, const WorkerCommand& /*older*/) { return false; }

bool Supersedes(const ToAgent& newer, const ToAgent& older) {
  return Supersedes(newer.command, older.command);
}

bool Supersedes(const ToWorker& newer, const ToWorker& older) {
  return Supersedes(newer.command, older.command);
}

Effects Step(State& state, const Event& event, absl::Time now) {
  Context context(state, now, state.unsettled.effects);
  ++state.serial;
  ForgivePause(context);
  Dispatch(context, event);
  const absl::Time due = state.settled + Spacing(state);
  if (now >= state.wake_at || SettlesAtOnce(event) || (state.unsettled.any() && now >= due)) {
    return Settle(context);
  }
  const bool waits = state.unsettled.any();
  Effects effects;
  if (!waits) effects = std::exchange(state.unsettled.effects, {});
  effects.wake_at = waits ? std::min(state.wake_at, due) : state.wake_at;
  return effects;
}

}  // namespace lockstep::coordinator
