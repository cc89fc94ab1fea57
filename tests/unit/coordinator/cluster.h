// SPDX-License-Identifier: Apache-2.0
// A cluster in a bottle for tests of the coordinator's core: agents, the processes that the
// coordinator wishes for, and the messages between them, which a test delivers, disturbs or loses.
// Checks the core's invariants on the way. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_UNIT_COORDINATOR_CLUSTER_H_
#define LOCKSTEP_TESTS_UNIT_COORDINATOR_CLUSTER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/context.h"
#include "coordinator/core/core.h"
#include "coordinator/core/journal.h"

namespace lockstep::coordinator {

// A cluster in a bottle: one agent for each node and the processes that the coordinator wishes for,
// which behave well unless a test says otherwise. Connections keep their order, and nothing else
// does.
class Cluster {
 public:
  explicit Cluster(int nodes, int slots) : slots_(slots) {
    // A restored coordinator judges at the same times as one that only stood still.
    state_.options.reconnect = absl::ZeroDuration();
    for (int i = 0; i < nodes; ++i) Connect(i);
  }

  struct Process {
    WorkerAssignment assignment;
    int node = 0;
    SessionId session = 0;
    int64_t generation = 0;
    bool ready = false;
    bool finished = false;
  };

  void Step(const Event& event) {
    effects_ = coordinator::Step(state_, event, now_);
    for (const Row& row : effects_.rows) {
      if (row.erased) {
        rows_.erase(row.key);
      } else {
        rows_[row.key] = row.value;
      }
    }
    EXPECT_EQ(FindStaleRow(state_), "");
    EXPECT_EQ(FindMisplaced(state_), "");
    if (twin_) ExpectTheSame(coordinator::Step(*twin_, event, now_));
    for (const ToAgent& message : effects_.to_agents) OnAgentCommand(message);
    for (const ToWorker& message : effects_.to_workers) OnWorkerCommand(message);
    for (const Append& append : effects_.events) OnEvent(append.event);
  }
  void Submit(const std::string& id, int nodes, int per_node, int priority = 0) {
    SubmitJobRequest request;
    request.mutable_spec()->set_name("mlp");
    request.mutable_spec()->set_priority(priority);
    request.mutable_spec()->mutable_resources()->set_nodes(nodes);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(per_node);
    request.mutable_spec()->mutable_train()->set_shards(8);
    request.mutable_spec()->mutable_restart()->set_max_restarts(restarts);
    Step(Submitted{id, request});
  }
  void Connect(int node) {
    AgentMessage message;
    AgentHello& hello = *message.mutable_hello();
    hello.set_node_id(absl::StrCat("n", node));
    hello.set_incarnation(absl::StrCat("n", node, "-1"));
    hello.set_host(absl::StrCat("host-", node));
    hello.set_slots(slots_);
    hello.add_numa()->set_cpus("0-3");
    hello.set_protocol_version(1);
    for (auto& [incarnation, process] : processes_) {
      if (process.node != node) continue;
      WorkerStarted& running = *hello.add_running();
      running.set_job_id(process.assignment.job_id());
      running.set_worker_incarnation(incarnation);
    }
    agents_[node] = ++sessions_;
    pending_[agents_[node]].push_back(AgentSaid{agents_[node], message});
    for (const WorkerExited& exited : unacknowledged_[node]) SayExited(node, exited);
  }
  void Disconnect(int node) {
    pending_.erase(agents_[node]);
    Step(AgentGone{agents_[node]});
    Connect(node);
  }
  void ConnectWorker(Process& process) {
    process.session = ++sessions_;
    WorkerMessage message = From(process);
    message.mutable_hello()->set_protocol_version(1);
    message.mutable_hello()->set_pid(1000 + process.assignment.slot());
    Say(process, message);
    if (process.ready) SayReady(process);
    if (process.finished) SayFinished(process);
  }
  void DisconnectWorker(Process& process) {
    const SessionId session = process.session;
    pending_.erase(session);
    ConnectWorker(process);
    Step(WorkerGone{session});
  }
  static WorkerMessage From(const Process& process) {
    WorkerMessage message;
    message.set_job_id(process.assignment.job_id());
    message.set_incarnation(process.assignment.incarnation());
    return message;
  }
  void Say(const Process& process, const WorkerMessage& message) {
    pending_[process.session].push_back(WorkerSaid{process.session, message});
  }
  void SayReady(Process& process) {
    process.ready = true;
    WorkerMessage message = From(process);
    WorkerReady& ready = *message.mutable_ready();
    ready.set_highest_generation(process.generation);
    ready.set_committed_step(process.generation > 0 ? 1 : 0);
    ready.set_plan_hash(plan_hash.count(process.assignment.slot()) ? "other" : "plan");
    ready.set_device_hash(device_hash.count(process.assignment.slot()) ? "other" : "bits");
    ready.set_device_description(absl::StrCat("cpu ", process.assignment.slot()));
    Say(process, message);
  }
  void SayFinished(Process& process) {
    process.finished = true;
    WorkerMessage message = From(process);
    message.mutable_finished()->set_steps(7);
    message.mutable_finished()->set_drained(drained_);
    Say(process, message);
  }
  void SayExited(int node, const WorkerExited& exited) {
    AgentMessage message;
    *message.mutable_exited() = exited;
    pending_[agents_[node]].push_back(AgentSaid{agents_[node], message});
  }
  void End(const std::string& incarnation, int code, int signal, bool wanted = false) {
    const auto found = processes_.find(incarnation);
    if (found == processes_.end()) return;
    const Process process = found->second;
    WorkerExited exited;
    exited.set_job_id(process.assignment.job_id());
    exited.set_worker_incarnation(incarnation);
    exited.set_exit_code(code);
    exited.set_signal(signal);
    exited.set_wanted(wanted);
    exited.set_order(++deaths_[process.node]);
    unacknowledged_[process.node].push_back(exited);
    SayExited(process.node, exited);
    ended_.insert(incarnation);
    processes_.erase(found);  // the name may be the entry's own
    pending_[process.session].push_back(WorkerGone{process.session});
  }

  // Hands over the first message of one connection, chosen by `random`. False: there is none.
  bool Deliver(std::mt19937& random) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      it = it->second.empty() ? pending_.erase(it) : std::next(it);
    }
    if (pending_.empty()) return false;
    auto it = std::next(pending_.begin(), random() % pending_.size());
    const Event event = it->second.front();
    it->second.pop_front();
    Step(event);
    return true;
  }
  // Does what a network and a peer that repeats itself may do: one message comes twice, two change
  // places, one is lost together with its connection's end. `random` chooses.
  void Disturb(std::mt19937& random) {
    std::vector<std::deque<Event>*> queues;
    for (auto& [session, queue] : pending_) {
      if (!queue.empty()) queues.push_back(&queue);
    }
    if (queues.empty()) return;
    std::deque<Event>& queue = *queues[random() % queues.size()];
    switch (random() % 3) {
      case 0:
        queue.push_back(queue[random() % queue.size()]);
        return;
      case 1:
        std::swap(queue[random() % queue.size()], queue[random() % queue.size()]);
        return;
      default:
        Lose(queue);
    }
  }
  // A message is only ever lost with its connection, which is opened again.
  void Lose(std::deque<Event>& queue) {
    const Event event = queue.front();
    if (const auto* said = std::get_if<AgentSaid>(&event)) {
      for (const auto& [node, session] : agents_) {
        if (session == said->session) return Disconnect(node);
      }
    } else if (const auto* worker = std::get_if<WorkerSaid>(&event)) {
      for (auto& [incarnation, process] : processes_) {
        if (process.session == worker->session) return DisconnectWorker(process);
      }
      queue.pop_front();  // the last words of a process that is gone
    }
  }
  // What the journal has.
  std::vector<Row> Rows() const {
    std::vector<Row> rows;
    for (const auto& [key, value] : rows_) rows.push_back({key, value});
    return rows;
  }
  // The coordinator is killed, is away for a while, and another goes on from the journal. One that
  // had only lost every connection and stood still meanwhile steps in `twin_` with the same events,
  // and must do the same.
  void Restart() {
    State twin = state_;
    const std::map<SessionId, std::string> agents = twin.agent_sessions;
    for (const auto& [session, node] : agents) coordinator::Step(twin, AgentGone{session}, now_);
    const auto workers = twin.worker_sessions;
    for (const auto& [session, name] : workers) coordinator::Step(twin, WorkerGone{session}, now_);
    const std::vector<Row> rows = Rows();
    now_ += absl::Seconds(3);
    coordinator::Step(twin, Tick{}, now_);
    absl::StatusOr<State> restored = Restore(rows, state_.options, now_);
    ASSERT_TRUE(restored.ok()) << restored.status();
    state_ = *std::move(restored);
    pending_.clear();
    Step(Tick{});
    twin_ = std::move(twin);
    for (auto& [node, session] : agents_) Connect(node);
    for (auto& [incarnation, process] : processes_) ConnectWorker(process);
  }
  void Wait(absl::Duration longest) {
    now_ = std::min(now_ + longest, std::max(now_, effects_.wake_at));
    Step(Tick{});
  }
  // Heartbeats of all, except of those in `silent`.
  void Beat() {
    ++beats_;
    for (const auto& [node, session] : agents_) {
      AgentMessage message;
      message.mutable_heartbeat();
      pending_[session].push_back(AgentSaid{session, message});
    }
    for (auto& [incarnation, process] : processes_) {
      if (process.session == 0 || silent.count(process.assignment.slot())) continue;
      WorkerMessage message = From(process);
      message.mutable_heartbeat()->set_progress_counter(
          standing.count(process.assignment.slot()) ? 1 : beats_);
      message.mutable_heartbeat()->mutable_progress()->set_step(process.generation > 0 ? 1 : 0);
      Say(process, message);
    }
  }
  // Everybody behaves until nothing is left to say.
  void Quiet() {
    std::mt19937 random(1);
    while (Deliver(random)) {
    }
  }
  void RunFor(absl::Duration duration) {
    const absl::Time until = now_ + duration;
    while (now_ < until) {
      now_ += absl::Milliseconds(100);
      Beat();
      Step(Tick{});
      Quiet();
    }
  }
  const Job& job(const std::string& id) { return state_.jobs.at(id); }

  State state_;
  absl::Time now_ = absl::UnixEpoch();
  Effects effects_;
  std::map<std::string, Process> processes_;
  std::map<int, SessionId> agents_;
  std::set<int> plan_hash, device_hash, silent, standing;  // slots that are different
  bool finish_at_once = true;
  int restarts = 0;
  std::map<std::string, std::string> rows_;  // what was written
  std::optional<State> twin_;

 private:
  // All but rows, in which events are numbered.
  void ExpectTheSame(Effects twin) {
    EXPECT_EQ(effects_.reply, twin.reply);
    ASSERT_EQ(effects_.to_agents.size(), twin.to_agents.size());
    for (size_t i = 0; i < twin.to_agents.size(); ++i) {
      AgentCommand ours = Whole(effects_.to_agents[i]);
      AgentCommand theirs = Whole(twin.to_agents[i]);
      if (ours.has_desired()) ours.mutable_desired()->clear_revision();
      if (theirs.has_desired()) theirs.mutable_desired()->clear_revision();
      EXPECT_EQ(effects_.to_agents[i].session, twin.to_agents[i].session);
      EXPECT_EQ(ours.DebugString(), theirs.DebugString());
    }
    ASSERT_EQ(effects_.to_workers.size(), twin.to_workers.size());
    for (size_t i = 0; i < twin.to_workers.size(); ++i) {
      EXPECT_EQ(effects_.to_workers[i].session, twin.to_workers[i].session);
      EXPECT_EQ(Whole(effects_.to_workers[i]).DebugString(),
                Whole(twin.to_workers[i]).DebugString());
    }
    ASSERT_EQ(effects_.events.size(), twin.events.size());
    for (size_t i = 0; i < twin.events.size(); ++i) {
      EXPECT_EQ(effects_.events[i].event.DebugString(), twin.events[i].event.DebugString());
    }
  }
  void OnAgentCommand(const ToAgent& message) {
    const AgentCommand command = Whole(message);
    for (const auto& [node, session] : agents_) {
      if (session != message.session) continue;
      if (command.has_rejected()) return Connect(node);
      if (command.has_desired()) Obey(node, command.desired());
      for (const auto& gone : command.acknowledged().worker_incarnations()) {
        std::erase_if(unacknowledged_[node], [&](const WorkerExited& exited) {
          return exited.worker_incarnation() == gone;
        });
      }
    }
  }
  void Obey(int node, const DesiredWorkers& desired) {
    std::set<std::string> wanted;
    for (const WorkerAssignment& assignment : desired.workers()) {
      wanted.insert(assignment.incarnation());
      if (processes_.count(assignment.incarnation()) || ended_.count(assignment.incarnation())) {
        continue;
      }
      Process& process = processes_[assignment.incarnation()];
      process.assignment = assignment;
      process.node = node;
      ConnectWorker(process);
      SayReady(process);
    }
    std::vector<std::string> unwanted;
    for (const auto& [incarnation, process] : processes_) {
      if (process.node == node && !wanted.count(incarnation)) unwanted.push_back(incarnation);
    }
    for (const std::string& incarnation : unwanted) End(incarnation, 0, 9, /*wanted=*/true);
  }
  void OnWorkerCommand(const ToWorker& message) {
    for (auto& [incarnation, process] : processes_) {
      if (process.session != message.session) continue;
      const WorkerCommand command = Whole(message);
      if (command.has_generation()) {
        CheckGeneration(process.assignment.job_id(), command.generation());
        process.generation = command.generation().generation();
        process.ready = false;
        if (finish_at_once) SayFinished(process);
      }
      if (command.has_abort()) {
        process.generation = std::max(process.generation, command.abort().generation());
      }
      if ((command.has_abort() && command.abort().generation() == process.generation) ||
          (command.has_regroup() && command.regroup().generation() == process.generation &&
           !process.finished)) {
        process.finished = false;
        SayReady(process);
      }
      if (command.has_drain()) {
        drained_ = true;
        SayFinished(process);
      }
      if (command.has_exit()) {
        const std::string ending = incarnation;
        End(ending, command.exit().code(), 0);
        return;
      }
    }
  }
  // A number names one membership, and a rank is there once.
  void CheckGeneration(const std::string& job_id, const Generation& generation) {
    const std::string text = generation.SerializeAsString();
    const auto [known, fresh] =
        generations_.emplace(absl::StrCat(job_id, "/", generation.generation()), text);
    EXPECT_EQ(known->second, text);
    int shard = 0;
    for (int rank = 0; rank < generation.members_size(); ++rank) {
      EXPECT_EQ(generation.members(rank).rank(), rank);
      EXPECT_EQ(generation.members(rank).shard_begin(), shard);
      shard = generation.members(rank).shard_end();
    }
    EXPECT_EQ(shard, generation.shards());
  }
  void OnEvent(const JobEvent& event) {
    if (!event.has_state()) return;
    const JobStatus& status = event.state();
    EXPECT_FALSE(status.reason().empty());
    EXPECT_EQ(final_.count(status.job_id()), 0) << "a final state is final";
    if (status.has_result()) final_.insert(status.job_id());
  }

  int slots_;
  SessionId sessions_ = 0;
  std::map<SessionId, std::deque<Event>> pending_;
  std::map<int, std::vector<WorkerExited>> unacknowledged_;
  std::map<int, int64_t> deaths_;
  std::set<std::string> ended_;
  std::map<std::string, std::string> generations_;
  std::set<std::string> final_;
  bool drained_ = false;
  int64_t beats_ = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_UNIT_COORDINATOR_CLUSTER_H_
