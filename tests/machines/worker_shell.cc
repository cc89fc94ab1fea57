// SPDX-License-Identifier: Apache-2.0
#include "tests/machines/worker_shell.h"

#include <utility>

namespace lockstep::simulation {
namespace {

constexpr int kHeartbeatKind = 1;

WorkerBootstrap Bootstrap(const Host& host, const launcher::agent_action::Start& start) {
  WorkerBootstrap bootstrap;
  *bootstrap.mutable_assignment() = start.assignment;
  bootstrap.set_node_id(host.name);
  bootstrap.set_host(host.name);
  bootstrap.set_cluster_id(start.cluster);
  bootstrap.set_epoch(start.epoch.number);
  return bootstrap;
}

}  // namespace

WorkerShell::WorkerShell(Timeline* timeline, Host* host, const launcher::agent_action::Start& start,
                         int64_t pid, Dial<WorkerMessage, WorkerCommand> dial)
    : Process(timeline, host),
      assignment_(start.assignment),
      pid_(pid),
      dial_(std::move(dial)),
      machine_(Bootstrap(*host, start), pid) {}

void WorkerShell::OpenSession() {
  Session::Callbacks callbacks;
  callbacks.hello = [this] { return machine_.Hello(); };
  callbacks.on_command = [this](const WorkerCommand& command) { OnCommand(command); };
  callbacks.on_connection = [this](bool connected, const std::string& reason) {
    OnConnection(connected, reason);
    if (connected) CarryOut(machine_.Connected());
  };
  session_ = std::make_shared<Session>(shared_from_this(), dial_, std::move(callbacks));
  session_->Begin();
}

void WorkerShell::SendBeat(WorkerMessage message) {
  session_->Send(std::move(message), kHeartbeatKind);
}

void WorkerShell::CarryOut(const worker::ControlMachine::Effects& effects) {
  for (const WorkerMessage& message : effects.messages) session_->Send(message);
  if (effects.abort) OnAbort(*effects.abort);
}

void WorkerShell::OnDeath() {
  if (session_ != nullptr) session_->Abandon();
}

}  // namespace lockstep::simulation
