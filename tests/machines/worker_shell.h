// SPDX-License-Identifier: Apache-2.0
// A worker's control machine with its session. Who derives from it has the main thread and what it
// trains. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_WORKER_SHELL_H_
#define LOCKSTEP_TESTS_MACHINES_WORKER_SHELL_H_

#include <memory>
#include <string>

#include "launcher/agent/machine.h"
#include "tests/machines/client_session.h"
#include "tests/machines/host.h"
#include "worker/control/control_machine.h"

namespace lockstep::simulation {

class WorkerShell : public Process {
 public:
  WorkerShell(Timeline* timeline, Host* host, const launcher::agent_action::Start& start,
              int64_t pid, Dial<WorkerMessage, WorkerCommand> dial);

  const WorkerAssignment& assignment() const { return assignment_; }
  const std::string& incarnation() const { return assignment_.incarnation(); }
  const std::string& job_id() const { return assignment_.job_id(); }
  int64_t pid() const { return pid_; }

 protected:
  // A command came.
  virtual void OnCommand(const WorkerCommand& command) = 0;
  // The watched generation is to end.
  virtual void OnAbort(const std::string& reason) = 0;
  // The connection came, or went.
  virtual void OnConnection(bool /*connected*/, const std::string& /*reason*/) {}
  // The session ends with the process.
  void OnDeath() override;

  void OpenSession();
  void Send(WorkerMessage message) { session_->Send(std::move(message)); }
  // In the place of one that has not left yet.
  void SendBeat(WorkerMessage message);
  void CarryOut(const worker::ControlMachine::Effects& effects);
  worker::ControlMachine& machine() { return machine_; }
  const worker::ControlMachine& machine() const { return machine_; }

 private:
  using Session = ClientSession<WorkerMessage, WorkerCommand>;

  const WorkerAssignment assignment_;
  const int64_t pid_;
  const Dial<WorkerMessage, WorkerCommand> dial_;
  worker::ControlMachine machine_;
  std::shared_ptr<Session> session_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_WORKER_SHELL_H_
