// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/agent_words.h"
#include "coordinator/core/files.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/returns.h"
#include "coordinator/core/sessions.h"

namespace lockstep::coordinator {
namespace {

void Reject(Context& context, SessionId session, Rejected::Kind kind, const std::string& why) {
  ToAgent reply;
  reply.session = session;
  reply.command.mutable_rejected()->set_reason(why);
  reply.command.mutable_rejected()->set_kind(kind);
  reply.close = true;
  context.effects.to_agents.push_back(std::move(reply));
}

// An agent speaks of its own node's workers.
bool IsOn(const Worker* worker, const std::string& node_id) {
  return worker != nullptr && worker->node_id == node_id;
}

void MarkStarted(Context& context, const std::string& node_id, const WorkerStarted& started) {
  Job* job = FindJob(context.state, started.job_id());
  Worker* worker = job == nullptr ? nullptr : FindWorker(*job, started.worker_incarnation());
  if (!IsOn(worker, node_id)) return;  // not desired, so the agent ends it
  worker->phase = std::max(worker->phase, Worker::Phase::kStarted);
  worker->pid = started.pid();
  context.touched_jobs.insert(job->id);
}

// Whoever ends under an agent that leaves was ended by it, and nothing is said against the worker.
void NoteEndedByAgent(Context& context, const Node& node, Worker& worker) {
  if (worker.verdict_serial != 0 || worker.failed || worker.leaving()) return;
  worker.verdict_serial = context.state.serial;
  worker.verdict = absl::StrCat("ended by the agent on ", node.host, ", which left");
}

// Workers that ran under an earlier life of the agent ended with it, unless it says that they run,
// or that how they ended follows.
void MarkLost(Context& context, const Node& node, const std::string& host_before,
              const AgentHello& hello, bool was_stopping) {
  std::set<std::string> running(hello.ended().begin(), hello.ended().end());
  for (const WorkerStarted& worker : hello.running()) running.insert(worker.worker_incarnation());
  for (const std::string& id : JobsOn(node)) {
    Job* const found = FindJob(context.state, id);
    if (found == nullptr) continue;
    Job& job = *found;
    for (Slot& slot : job.slots) {
      if (slot.vacant()) continue;
      Worker& worker = *slot.worker;
      if (worker.node_id != node.id || worker.gone() || running.count(worker.incarnation)) continue;
      if (worker.phase < Worker::Phase::kStarted && !job.final()) continue;  // it is to be started
      if (was_stopping) {
        // It had no time to say how they ended.
        if (worker.died_serial == 0) NoteEndedByAgent(context, node, worker);
      } else if (worker.verdict_serial == 0 && worker.died_serial == 0 && !worker.failed) {
        worker.verdict_serial = context.state.serial;
        worker.verdict = absl::StrCat("ended when the agent on ", host_before, " ended");
        worker.node_lost = true;
        if (!job.final()) {
          NoteNodeFailure(context, node.id, "its agent ended with work on it", "");
        }
      }
      worker.node_lost |= was_stopping;
      worker.end_unknown = true;
      MarkExited(context, job, worker, WorkerExited{});
    }
    for (Worker& worker : job.former) {
      if (worker.node_id != node.id || worker.gone() || running.count(worker.incarnation)) continue;
      worker.end_unknown = true;
      MarkExited(context, job, worker, WorkerExited{});
    }
  }
}

// The session of a node that was away is there before its first message is.
void NoteContact(Context& context, Node& node) {
  const bool was_silent = context.now - node.last_contact > context.state.options.node_silent_after;
  if (was_silent) {
    node.back_since = context.now;
    context.schedule = true;
  }
  node.last_contact = node.heard = context.now;
}

// Notes what the agent's checks found. What it finds when it joins has cost nobody anything.
void NoteHealth(Context& context, Node& node, const NodeHealth& health, bool joins = false) {
  const std::string before = std::exchange(node.problem, ClippedProblem(health.problem()));
  if (node.problem == before) return;
  context.schedule = true;
  if (before.empty() && !joins) NoteNodeFailure(context, node.id, node.problem, "");
}

std::string WhyNotServed(const AgentHello& hello, int own) {
  const int oldest = OldestServed(own);
  return absl::StrCat(
      "the agent", hello.version().empty() ? "" : " (version ", hello.version(),
      hello.version().empty() ? "" : ")", " speaks protocol ", hello.protocol_version(),
      ", the coordinator ", own, oldest == own ? std::string() : absl::StrCat(" and ", oldest),
      hello.protocol_version() > own ? ": upgrade the coordinator first" : ": upgrade the agent");
}

// Returns whether the node cannot be this caller's, as it joined with a token for somebody else and
// has work: who takes it over is sent the jobs with their secrets, and says how they end. One
// without work is as good as a new one.
bool IsOfAnother(const Context& context, const Node& node, const AgentSaid& event) {
  if (!node.owner || event.owner.empty() || event.owner == *node.owner) return false;
  return InSight(context.state, node, context.now) || HasWork(context.state, node);
}

void OnHello(Context& context, const AgentSaid& event) {
  const AgentHello& hello = event.message.hello();
  const SessionId session = event.session;
  if (const int own = context.state.options.protocol_version;
      !IsServed(hello.protocol_version(), own)) {
    Reject(context, session, Rejected::VERSION, WhyNotServed(hello, own));
    return;
  }
  // It may have been revoked since the connection was made.
  if (!event.token_id.empty() && !context.state.tokens.contains(event.token_id)) {
    return Reject(context, session, Rejected::REVOKED, "its token was revoked");
  }
  if (const std::string why = WhyMalformed(hello); !why.empty()) {
    return Reject(context, session, Rejected::MALFORMED, why);
  }
  // Else the earlier one would never be gone: the connection's end would be that of the last one.
  const auto spoke = context.state.agent_sessions.find(session);
  if (spoke != context.state.agent_sessions.end() && spoke->second != hello.node_id()) {
    return Reject(context, session, Rejected::MALFORMED,
                  absl::StrCat("this connection is that of the node ", spoke->second,
                               ", and cannot be that of another one"));
  }
  Node& node = context.state.nodes[hello.node_id()];
  if (IsOfAnother(context, node, event)) {
    return Reject(
        context, session, Rejected::OTHER_OWNER,
        absl::StrCat("the node ", node.id, " on ", node.host, " joined with ",
                     node.owner->empty() ? "an administrator's token"
                                         : absl::StrCat("a token for ", *node.owner),
                     ", this is one for ", event.owner,
                     ": show such a token, or wait until the node's work has ended and its agent "
                     "has left"));
  }
  const bool other_connection = node.session != 0 && node.session != session;
  if (other_connection && node.incarnation != hello.incarnation() &&
      InSight(context.state, node, context.now)) {
    return Reject(context, session, Rejected::NODE_TAKEN,
                  absl::StrCat("the node ", node.id, " has a living agent on ", node.host,
                               "; another needs a state folder of its own (--state-dir)"));
  }
  if (other_connection) {
    // What an agent said on an earlier connection may come after it is back on a newer one.
    const bool late = node.incarnation == hello.incarnation() && session < node.session;
    const SessionId older = late ? session : node.session;
    Reject(context, older, Rejected::REPLACED, "a newer connection of this node has taken over");
    context.state.agent_sessions.erase(older);
    if (late) return;
  }
  const bool restarted = node.incarnation != hello.incarnation();
  const std::string host_before = node.host;
  node.id = hello.node_id();
  node.incarnation = hello.incarnation();
  node.host = hello.host();
  node.slots = hello.slots();
  node.devices.assign(hello.devices().begin(), hello.devices().end());
  node.is_private = hello.private_agent();
  node.cores = hello.cores();
  node.memory = hello.memory();
  node.numa.assign(hello.numa().begin(), hello.numa().end());
  node.labels = {hello.labels().begin(), hello.labels().end()};
  node.seen_address = event.peer;
  node.token_id = event.token_id;
  node.owner = event.owner;
  node.session = session;
  node.sent.reset();
  context.state.agent_sessions[session] = node.id;
  for (const WorkerStarted& started : hello.running()) MarkStarted(context, node.id, started);
  if (restarted) {  // else it still leaves, if it did
    const bool was_stopping = std::exchange(node.stopping, false);
    SetKeeps(context.state, node, false);
    MarkLost(context, node, host_before, hello, was_stopping);
  }
  NoteAnnouncedEnds(context, node, hello);
  NoteHealth(context, node, hello.health(), /*joins=*/true);
  context.changed_nodes.insert(node.id);
  context.wish_nodes.push_back(node.id);
  context.schedule = true;
}

// When that was of which an agent says how long ago it was, within reason.
absl::Time TimeOf(const Context& context, const Job& job, const google::protobuf::Duration& ago) {
  return std::clamp(context.now - FromProto(ago), std::min(job.started, context.now), context.now);
}

// One that leaves while it has no coordinator ends its workers too, and says so itself or leaves it
// to the next agent. `wanted` is what that says of the worker's end.
void NoteIfAgentLeft(Context& context, const Node& node, const Job& job, bool wanted,
                     Worker& worker) {
  const bool unasked = wanted && worker.serves() && !job.ending && !job.final() &&
                       &worker == FindWorker(job, worker.incarnation);
  if (!node.stopping && !unasked) return;
  NoteEndedByAgent(context, node, worker);
  worker.node_lost = true;
}

void OnDied(Context& context, const std::string& node_id, const WorkerDied& died) {
  Job* job = FindJob(context.state, died.job_id());
  Worker* worker = job == nullptr ? nullptr : FindWorker(*job, died.worker_incarnation());
  if (!IsOn(worker, node_id) || worker->dead()) return;
  NoteIfAgentLeft(context, context.state.nodes[node_id], *job, died.wanted(), *worker);
  if (!worker->leaving()) worker->phase = Worker::Phase::kDied;
  worker->died_serial = context.state.serial;
  worker->died_order = died.order();
  worker->failed_at = std::min(worker->failed_at, TimeOf(context, *job, died.ago()));
  context.touched_jobs.insert(job->id);
}

void OnExited(Context& context, SessionId session, const std::string& node_id,
              const WorkerExited& exited) {
  ToAgent reply;
  reply.session = session;
  reply.command.mutable_acknowledged()->add_worker_incarnations(exited.worker_incarnation());
  context.effects.to_agents.push_back(std::move(reply));
  Job* job = FindJob(context.state, exited.job_id());
  Worker* worker = job == nullptr ? nullptr : FindWorker(*job, exited.worker_incarnation());
  if (worker == nullptr && job != nullptr) worker = FindFormer(*job, exited.worker_incarnation());
  if (!IsOn(worker, node_id)) return;
  if (exited.node_unfit()) {
    // Before its agent says so of the node itself.
    worker->node_lost = true;
    NodeHealth health;
    health.set_problem(exited.start_error());
    const auto node = context.state.nodes.find(worker->node_id);
    if (node != context.state.nodes.end()) NoteHealth(context, node->second, health);
  }
  NoteIfAgentLeft(context, context.state.nodes[node_id], *job, exited.wanted(), *worker);
  MarkExited(context, *job, *worker, exited);
}

// It gets nothing new, and what ends there costs no job anything.
void OnStopping(Context& context, Node& node, const AgentStopping& stopping) {
  const absl::Duration grace = FromProto(stopping.grace());
  const absl::Time saves_at = context.now + grace / 2;
  // What it says again after a reconnect is the rest.
  node.saves_at = node.stopping ? std::min(node.saves_at, saves_at) : saves_at;
  node.stopping = true;
  SetKeeps(context.state, node, grace > absl::ZeroDuration());
  context.schedule = true;
  context.wish_nodes.push_back(node.id);
  for (const std::string& id : JobsOn(node)) {
    const Job* job = FindJob(context.state, id);
    if (job != nullptr && !job->final()) context.touched_jobs.insert(id);
  }
}

// Returns whether the job has, or had, a worker on the node whose lines may still come.
bool HasHad(const Job& job, const std::string& node_id) {
  const auto here = [&](const Worker& worker) { return worker.node_id == node_id; };
  return std::any_of(job.former.begin(), job.former.end(), here) ||
         std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
           return slot.node_id == node_id || (slot.worker && here(*slot.worker));
         });
}

void OnLog(Context& context, const Node& node, const LogChunk& chunk) {
  Job* job = FindJob(context.state, chunk.job_id());
  if (job == nullptr || job->final() || !HasHad(*job, node.id)) return;
  JobEvent event;
  *event.mutable_log() = chunk.lines();
  AppendEvent(context, *job, std::move(event));
}

// Whose place was given up leaves it vacant at its end. `worker` may be no more after this.
void VacateLeft(Job& job, const Worker& worker) {
  for (Slot& slot : job.slots) {
    if (!slot.worker || &*slot.worker != &worker) continue;
    slot.last_peak_rss_bytes = worker.peak_rss_bytes();
    NoteLeft(worker, job);
    slot.worker.reset();
    return;
  }
}

}  // namespace

void MarkExited(Context& context, Job& job, Worker& worker, const WorkerExited& record) {
  if (worker.gone()) return;
  if (worker.died_serial == 0) {
    worker.died_serial = context.state.serial;
    worker.died_order = record.order();
    worker.failed_at = std::min(worker.failed_at, TimeOf(context, job, record.ago()));
  }
  worker.exited = record;
  if (worker.pid == 0) worker.pid = record.pid();
  context.touched_jobs.insert(job.id);
  context.wish_nodes.push_back(worker.node_id);
  context.schedule = true;
  const bool left = worker.leaving();
  worker.phase = Worker::Phase::kExited;
  if (left) VacateLeft(job, worker);
}

void OnAgentSaid(Context& context, const AgentSaid& event) {
  const AgentMessage& message = event.message;
  if (message.has_hello()) OnHello(context, event);
  auto known = context.state.agent_sessions.find(event.session);
  if (known == context.state.agent_sessions.end()) {
    if (!message.has_hello())
      Reject(context, event.session, Rejected::MALFORMED, "say hello first");
    return;
  }
  Node& node = context.state.nodes[known->second];
  NoteContact(context, node);
  switch (message.message_case()) {
    case AgentMessage::kStarted:
      MarkStarted(context, node.id, message.started());
      break;
    case AgentMessage::kDied:
      OnDied(context, node.id, message.died());
      break;
    case AgentMessage::kExited:
      OnExited(context, event.session, node.id, message.exited());
      break;
    case AgentMessage::kLog:
      OnLog(context, node, message.log());
      break;
    case AgentMessage::kHeartbeat:
      node.usage = message.heartbeat();
      if (message.heartbeat().has_health()) NoteHealth(context, node, message.heartbeat().health());
      break;
    case AgentMessage::kStopping:
      OnStopping(context, node, message.stopping());
      break;
    default:
      break;
  }
}

void OnAgentGone(Context& context, const AgentGone& event) {
  auto known = context.state.agent_sessions.find(event.session);
  if (known == context.state.agent_sessions.end()) return;
  Node& node = context.state.nodes[known->second];
  // The end of a connection is no sign of life: of a host that vanished it comes with the
  // keepalive.
  node.session = 0;
  node.sent.reset();
  context.state.agent_sessions.erase(known);
  for (const std::string& id : JobsOn(node)) {
    const Job* job = FindJob(context.state, id);
    if (job != nullptr && !job->final()) context.touched_jobs.insert(id);
  }
  context.schedule = true;
}

}  // namespace lockstep::coordinator
