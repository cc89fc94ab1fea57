// SPDX-License-Identifier: Apache-2.0
// An agent's machine with its session and its timer. Who derives from it has the processes that the
// machine starts and ends. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_AGENT_SHELL_H_
#define LOCKSTEP_TESTS_MACHINES_AGENT_SHELL_H_

#include <memory>
#include <string>

#include "launcher/agent/machine.h"
#include "tests/machines/client_session.h"
#include "tests/machines/host.h"

namespace lockstep::simulation {

class AgentShell : public Process {
 public:
  AgentShell(Timeline* timeline, Host* host, launcher::AgentMachineOptions options,
             Dial<AgentMessage, AgentCommand> dial);

  bool connected() const { return machine_.connected(); }

 protected:
  using Session = ClientSession<AgentMessage, AgentCommand>;

  // The machine's part of it with what the process knows.
  virtual AgentHello Hello() const = 0;
  // A command came.
  virtual void OnCommand(const AgentCommand& command) {
    Feed(launcher::agent_event::Command{command});
  }
  // What was queued for the session before goes with that.
  virtual void OnNewSession() {}
  // A stream has taken the message.
  virtual void OnWritten(const AgentMessage& /*message*/) {}
  virtual void OnStart(const launcher::agent_action::Start& start) = 0;
  virtual void OnTerminate(const launcher::agent_action::Terminate& terminate) = 0;
  virtual void OnSaveAndLeave(const launcher::agent_action::SaveAndLeave& /*leave*/) {}
  virtual void OnKill(const launcher::agent_action::Kill& kill) = 0;
  virtual void OnForget(const launcher::agent_action::Forget& forget) = 0;
  virtual void OnSendFiles(const launcher::agent_action::SendFiles& /*files*/) {}
  virtual void OnReport(const launcher::agent_action::Report& /*report*/) {}
  virtual void OnWarn(const launcher::agent_action::Warn& /*warning*/) {}
  // All that a step of the machine asked for is done.
  virtual void AfterStep() {}
  // The session ends with the process.
  void OnDeath() override;

  void OpenSession();
  // A step of the machine.
  void Feed(const launcher::AgentEvent& event);
  launcher::AgentMachine& machine() { return machine_; }
  const launcher::AgentMachine& machine() const { return machine_; }
  Session& session() { return *session_; }

 private:
  void CarryOut(const launcher::agent_action::Start& start) { OnStart(start); }
  void CarryOut(const launcher::agent_action::Terminate& terminate) { OnTerminate(terminate); }
  void CarryOut(const launcher::agent_action::SaveAndLeave& leave) { OnSaveAndLeave(leave); }
  void CarryOut(const launcher::agent_action::Kill& kill) { OnKill(kill); }
  void CarryOut(const launcher::agent_action::Forget& forget) { OnForget(forget); }
  void CarryOut(const launcher::agent_action::SendFiles& files) { OnSendFiles(files); }
  void CarryOut(const launcher::agent_action::Report& report) { OnReport(report); }
  void CarryOut(const launcher::agent_action::Warn& warning) { OnWarn(warning); }
  void CarryOut(const launcher::agent_action::Send& send);
  void CarryOut(const launcher::agent_action::Heartbeat&);
  void CarryOut(const launcher::agent_action::CloseSession&);
  void CarryOut(const launcher::agent_action::OpenSession&) { OpenSession(); }

  const Dial<AgentMessage, AgentCommand> dial_;
  launcher::AgentMachine machine_;
  std::shared_ptr<Session> session_;
  int sessions_ = 0;
  absl::Time armed_ = absl::InfiniteFuture();
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_AGENT_SHELL_H_
