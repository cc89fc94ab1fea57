// SPDX-License-Identifier: Apache-2.0
// What an agent decides: which workers it starts, ends and forgets, whose commands it obeys, what
// it tells the coordinator and its user, and when it tries again. Events go in with the time,
// actions come out; there is no thread, process, socket or clock in it, so that tests and a
// simulator drive it through any order of events. agent.cc carries the actions out.
//
// Whose commands. A command names its cluster (a coordinator's journal) and an epoch that rises
// with each life of the coordinator. Of one cluster, the newest epoch seen is obeyed and lower ones
// are ignored. When a coordinator of another cluster is at the address, it is obeyed for what it
// wants; workers that it does not know are orphans of the cluster that gave them: they go on for
// `orphan_grace`, said by name, and stay when that cluster's coordinator is back in time. What the
// coordinator that gave a worker leaves out or names to be killed is ended at once; by name where
// that is a later life of it than knew the worker, whose journal may be an older one (a backup). A
// coordinator that refuses the agent changes nothing: all workers go on, and the agent tries again.
//
// Workers outlive their agent where a supervisor has them. The next agent adopts them: it knows
// whose they are, obeys no older life of that coordinator than they do, and says of each that it
// runs, or how it ended. An agent that ends its workers because it leaves says so before, and keeps
// for `leave_grace` those that the coordinator still wants: they hand over to others, or save.
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_AGENT_MACHINE_H_
#define LOCKSTEP_LAUNCHER_AGENT_MACHINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "launcher/agent/epoch.h"
#include "launcher/agent/reconcile.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// What happened.
namespace agent_event {
// The stream to the coordinator is up, or down.
struct Connected {};
struct Disconnected {
  std::string reason;
};
struct Command {
  AgentCommand command;
};
// Of a worker that an action started. `order` is its place among the deaths of its job here (0:
// there is none), `ago` how long before the event it happened.
struct Started {
  std::string incarnation;
  int64_t pid = 0;
};
struct Died {
  std::string incarnation;
  int64_t order = 0;
  absl::Duration ago = {};
};
struct Exited {
  std::string incarnation;
  int exit_code = 0;
  int signal = 0;
  int64_t peak_rss_bytes = 0;
  int64_t order = 0;
  absl::Duration ago = {};
  std::vector<std::string> last_lines = {};
  bool died_before_signal = false;  // it was dead when the first signal was sent
};
struct StartFailed {
  std::string incarnation;
  std::string why;
  int64_t order = 0;
  absl::Duration ago = {};
  std::vector<std::string> last_lines = {};
  bool node_unfit = false;  // it is the node that is not well
  bool may_pass = false;    // as in WorkerExited
  int exit_code = 1;        // of a job that it ends
};
// Of a worker that an agent before this one has started, before anything else happens. One that has
// ended is adopted, too, and then exits.
struct Adopted {
  WorkerAssignment assignment;
  std::string cluster;  // whose coordinator gave it
  Epoch epoch;
  int64_t pid = 0;
  bool wanted_end = false;  // it was to end
};
// The user wants to leave.
struct Stop {
  bool kill = false;  // at once
  // There will be no coordinator again: the workers get the time to save (common/farewell.h).
  bool save = false;
};
// The time that the last step asked for has come.
struct Tick {};
}  // namespace agent_event
using AgentEvent = std::variant<agent_event::Connected, agent_event::Disconnected,
                                agent_event::Command, agent_event::Started, agent_event::Died,
                                agent_event::Exited, agent_event::StartFailed, agent_event::Adopted,
                                agent_event::Stop, agent_event::Tick>;

// What is to be done, in this order.
namespace agent_action {
struct Start {
  WorkerAssignment assignment;
  // Where the coordinator sees this agent's connection come from; empty: it does not say.
  std::string seen_address;
  // The coordinator that wants it.
  std::string cluster;
  Epoch epoch;
};
struct Terminate {  // SIGTERM
  std::string incarnation;
};
struct SaveAndLeave {  // kFarewellSignal
  std::string incarnation;
};
struct Kill {  // SIGKILL
  std::string incarnation;
};
struct Forget {
  std::string incarnation;
};
struct Send {
  AgentMessage message;
};
// Files of a run's folder that a user asks for; they go on a stream of their own.
struct SendFiles {
  lockstep::SendFiles wanted;
};
struct Heartbeat {};
// Ends the stream and what waits to be sent on it; opens one anew.
struct CloseSession {};
struct OpenSession {};
// The connection as the user sees it: up once a coordinator wants something from this node.
struct Report {
  bool connected = false;
  std::string reason;
};
struct Warn {
  std::string text;
};
}  // namespace agent_action
using AgentAction =
    std::variant<agent_action::Start, agent_action::Terminate, agent_action::SaveAndLeave,
                 agent_action::Kill, agent_action::Forget, agent_action::Send,
                 agent_action::SendFiles, agent_action::Heartbeat, agent_action::CloseSession,
                 agent_action::OpenSession, agent_action::Report, agent_action::Warn>;

struct AgentMachineOptions {
  absl::Duration orphan_grace = absl::Minutes(5);
  absl::Duration heartbeat_every = absl::Seconds(1);
  // It says when it leaves; a run's own agent does not, as its coordinator leaves with it.
  bool announce_leaving = true;
  absl::Duration leave_grace = absl::ZeroDuration();
  // What to do when another agent has this node's id, for its message.
  std::string taken_advice = {};
  // The wall time to show for a time of the machine.
  std::function<absl::Time(absl::Time)> wall = [](absl::Time time) { return time; };
};

class AgentMachine {
 public:
  struct Output {
    std::vector<AgentAction> actions;
    absl::Time next = absl::InfiniteFuture();  // when a Tick is due without any event before
  };

  explicit AgentMachine(AgentMachineOptions options) : options_(std::move(options)) {}

  // `now` never goes back.
  Output Step(const AgentEvent& event, absl::Time now);

  // The part of a hello that it knows: what runs, and the newest coordinator that it has obeyed.
  AgentHello Hello() const;
  bool connected() const { return connected_; }
  // It was stopped and no worker is left.
  bool stopped() const { return stopping_ && !AnyAlive(); }
  // Workers that are remembered, those that have exited among them.
  size_t size() const { return workers_.size(); }

 private:
  struct Worker {
    WorkerView view;
    std::string job_name;
    std::string cluster;  // whose coordinator wanted it last
    int64_t epoch = 0;    // the newest life of it that did
    absl::Duration grace;
    int64_t pid = 0;
    int64_t order = 0;        // of its death; 0: not seen
    bool wanted_end = false;  // the agent itself ended it
    bool adopted = false;     // and no coordinator has said yet what it wants
    absl::Time died_at;       // when `order` was seen before it had exited
    absl::Time ended_at;
    WorkerExited record;
  };

  void Handle(const agent_event::Connected& event);
  void Handle(const agent_event::Disconnected& event);
  void Handle(const agent_event::Command& event);
  void Handle(const agent_event::Started& event);
  void Handle(const agent_event::Died& event);
  void Handle(const agent_event::Exited& event);
  void Handle(const agent_event::StartFailed& event);
  void Handle(const agent_event::Adopted& event);
  void Handle(const agent_event::Stop& event);
  void Handle(const agent_event::Tick&) {}

  void AnnounceLeaving();
  // Wants no worker any more.
  void WantNone();
  // A worker that is, or was, to run; not announced.
  Worker& Add(const WorkerAssignment& assignment, const std::string& cluster);
  void NoteEpoch(const std::string& cluster, const Epoch& epoch);
  // Returns whether the command's coordinator is obeyed; it is the present one then.
  bool Accept(const AgentCommand& command);
  void OnRejected(const Rejected& rejected);
  void OnDesired(const DesiredWorkers& desired);
  // Spares what another cluster gave and the present one does not know.
  void SpareOrphans();
  // Names those of its own cluster that a later life of the coordinator does not know.
  void TellOfUnknown();
  // Does what time and wishes ask for.
  void Settle();
  void CarryOut(const ReconcileActions& todo);
  void Terminate(Worker& worker);
  void Kill(Worker& worker);
  void Exit(Worker& worker, absl::Duration ago, const std::vector<std::string>& last_lines);
  // Says that it died, and how long ago; how it ended is not known yet.
  void SendDeath(const Worker& worker);
  // Says how it ended, and how long ago.
  void SendRecord(const Worker& worker);
  // The coordinator wants one ended that was never started here, as the wish did not get through:
  // it counts as running until its end is known.
  void SayNeverStarted(const std::string& incarnation);
  void DropOldOrphans();
  bool AnyAlive() const;
  Worker* Find(const std::string& incarnation);
  void Send(AgentMessage message);
  void Warn(std::string text);

  const AgentMachineOptions options_;
  absl::Time now_;
  Output out_;

  DesiredWorkers desired_;
  std::map<std::string, Worker> workers_;  // by incarnation
  std::string cluster_;                    // of the newest command obeyed
  std::map<std::string, Epoch> epochs_;    // the newest of each cluster
  std::set<std::string> ignored_;          // coordinators whose commands were ignored, said once
  bool connected_ = false;
  bool announced_ = false;        // Report said so
  std::string last_trouble_;      // what the user heard last about the connection
  absl::Duration retry_backoff_;  // zero: not refused
  absl::Time retry_at_ = absl::InfiniteFuture();
  bool stopping_ = false;
  absl::Time leave_by_ = absl::InfiniteFuture();  // stopping_: when no worker is kept any more
  absl::Time next_heartbeat_ = absl::InfinitePast();
  int64_t deaths_without_order_ = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_MACHINE_H_
