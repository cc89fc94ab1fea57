// SPDX-License-Identifier: Apache-2.0
// An agent's machine with a time of the test's, and what it does as lines.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_UNIT_LAUNCHER_AGENT_DRIVER_H_
#define LOCKSTEP_TESTS_UNIT_LAUNCHER_AGENT_DRIVER_H_

#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/agent/machine.h"

namespace lockstep::launcher {

inline constexpr absl::Duration kGrace = absl::Minutes(5);

inline std::string TextOf(const agent_action::Start& a) {
  return "start " + a.assignment.incarnation();
}
inline std::string TextOf(const agent_action::Terminate& a) { return "term " + a.incarnation; }
inline std::string TextOf(const agent_action::SaveAndLeave& a) { return "save " + a.incarnation; }
inline std::string TextOf(const agent_action::Kill& a) { return "kill " + a.incarnation; }
inline std::string TextOf(const agent_action::Forget& a) { return "forget " + a.incarnation; }
inline std::string TextOf(const agent_action::SendFiles& a) {
  return "files of " + a.wanted.job_id();
}
inline std::string TextOf(const agent_action::Heartbeat&) { return "heartbeat"; }
inline std::string TextOf(const agent_action::CloseSession&) { return "close"; }
inline std::string TextOf(const agent_action::OpenSession&) { return "open"; }
inline std::string TextOf(const agent_action::Report& a) {
  return a.connected ? "up" : absl::StrCat("down: ", a.reason);
}
inline std::string TextOf(const agent_action::Warn& a) { return absl::StrCat("warn ", a.text); }
inline std::string TextOf(const agent_action::Send& a) {
  if (a.message.has_started()) return "said started " + a.message.started().worker_incarnation();
  if (a.message.has_died()) {
    return absl::StrCat("said died ", a.message.died().worker_incarnation(),
                        a.message.died().wanted() ? " wanted" : "");
  }
  if (a.message.has_stopping()) return "said stopping";
  return absl::StrCat("said exited ", a.message.exited().worker_incarnation(),
                      a.message.exited().wanted() ? " wanted" : "");
}

// The machine with a time of the test's and its actions as lines (without heartbeats).
class Driver {
 public:
  explicit Driver(AgentMachineOptions options = {.orphan_grace = kGrace}) : machine(options) {}

  std::vector<std::string> Do(const AgentEvent& event) {
    const AgentMachine::Output output = machine.Step(event, now);
    next = output.next;
    std::vector<std::string> lines;
    for (const AgentAction& action : output.actions) {
      std::string line = std::visit([](const auto& a) { return TextOf(a); }, action);
      if (line != "heartbeat") lines.push_back(std::move(line));
      if (const auto* send = std::get_if<agent_action::Send>(&action)) sent = send->message;
      if (const auto* start = std::get_if<agent_action::Start>(&action)) started = *start;
    }
    return lines;
  }
  std::vector<std::string> Adopt(const std::string& cluster, int64_t epoch,
                                 const std::string& worker) {
    agent_event::Adopted event;
    event.assignment.set_incarnation(worker);
    event.assignment.set_job_id(worker.substr(0, worker.find('.')));
    event.assignment.mutable_spec()->set_name("mnist");
    event.cluster = cluster;
    event.epoch.number = epoch;
    event.pid = 77;
    return Do(event);
  }
  // Returns what the coordinator of `cluster` in its life `epoch` wants.
  std::vector<std::string> Want(const std::string& cluster, int64_t epoch,
                                const std::vector<std::string>& workers,
                                const std::vector<std::string>& kill = {}) {
    agent_event::Command event;
    event.command.set_cluster_id(cluster);
    event.command.set_epoch(epoch);
    event.command.mutable_desired();
    for (const std::string& worker : workers) {
      WorkerAssignment* assignment = event.command.mutable_desired()->add_workers();
      assignment->set_incarnation(worker);
      assignment->set_job_id(worker.substr(0, worker.find('.')));
      assignment->mutable_spec()->set_name("mnist");
    }
    for (const std::string& worker : kill) {
      event.command.mutable_desired()->add_kill_workers(worker);
    }
    return Do(event);
  }
  std::vector<std::string> Acknowledge(const std::string& cluster, const std::string& worker) {
    agent_event::Command event;
    event.command.set_cluster_id(cluster);
    event.command.set_epoch(1);
    event.command.mutable_acknowledged()->add_worker_incarnations(worker);
    return Do(event);
  }
  std::vector<std::string> Reject(Rejected::Kind kind, const std::string& reason) {
    agent_event::Command event;
    event.command.mutable_rejected()->set_kind(kind);
    event.command.mutable_rejected()->set_reason(reason);
    return Do(event);
  }
  std::vector<std::string> Exit(const std::string& worker) {
    return Do(agent_event::Exited{.incarnation = worker, .order = 1});
  }
  // Lets the time pass in the steps that the machine asks for; returns what it did.
  std::vector<std::string> Pass(absl::Duration duration) {
    std::vector<std::string> lines;
    const absl::Time end = now + duration;
    while (true) {
      now = std::min(end, std::max(now, next));
      for (std::string& line : Do(agent_event::Tick{})) lines.push_back(std::move(line));
      if (now == end) return lines;
    }
  }

  AgentMachine machine;
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  absl::Time next = absl::InfinitePast();
  agent_action::Start started;
  AgentMessage sent;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_TESTS_UNIT_LAUNCHER_AGENT_DRIVER_H_
