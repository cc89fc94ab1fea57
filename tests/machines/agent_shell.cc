// SPDX-License-Identifier: Apache-2.0
#include "tests/machines/agent_shell.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace lockstep::simulation {
namespace {

constexpr int kHeartbeatKind = 1;

}  // namespace

AgentShell::AgentShell(Timeline* timeline, Host* host, launcher::AgentMachineOptions options,
                       Dial<AgentMessage, AgentCommand> dial)
    : Process(timeline, host), dial_(std::move(dial)), machine_(std::move(options)) {}

void AgentShell::OpenSession() {
  const int number = ++sessions_;
  OnNewSession();
  Session::Callbacks callbacks;
  callbacks.hello = [this] {
    AgentMessage message;
    *message.mutable_hello() = Hello();
    return message;
  };
  callbacks.on_command = [this, number](const AgentCommand& command) {
    if (number == sessions_) OnCommand(command);
  };
  callbacks.on_connection = [this, number](bool connected, const std::string& reason) {
    if (number != sessions_) return;
    if (connected) {
      Feed(launcher::agent_event::Connected{});
    } else {
      Feed(launcher::agent_event::Disconnected{reason});
    }
  };
  callbacks.on_written = [this, number](const AgentMessage& message) {
    if (number == sessions_) OnWritten(message);
  };
  session_ = std::make_shared<Session>(shared_from_this(), dial_, std::move(callbacks));
  session_->Begin();
}

void AgentShell::Feed(const launcher::AgentEvent& event) {
  const launcher::AgentMachine::Output output = machine_.Step(event, Now());
  for (const launcher::AgentAction& action : output.actions) {
    std::visit([this](const auto& a) { this->CarryOut(a); }, action);
  }
  AfterStep();
  if (output.next == absl::InfiniteFuture() || output.next >= armed_) return;
  armed_ = output.next;
  After(std::max(absl::ZeroDuration(), output.next - Now()), [this, at = armed_] {
    if (armed_ == at) armed_ = absl::InfiniteFuture();
    Feed(launcher::agent_event::Tick{});
  });
}

void AgentShell::CarryOut(const launcher::agent_action::Send& send) {
  session_->Send(send.message);
}

void AgentShell::CarryOut(const launcher::agent_action::Heartbeat&) {
  AgentMessage message;
  message.mutable_heartbeat();
  session_->Send(std::move(message), kHeartbeatKind);
}

void AgentShell::CarryOut(const launcher::agent_action::CloseSession&) {
  ++sessions_;
  session_->Close(absl::ZeroDuration());
}

void AgentShell::OnDeath() {
  if (session_ != nullptr) session_->Abandon();
}

}  // namespace lockstep::simulation
