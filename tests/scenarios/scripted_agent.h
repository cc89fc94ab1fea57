// SPDX-License-Identifier: Apache-2.0
// An agent of a script: the agent's machine and session, with the processes that it starts. They
// begin by themselves, and end when they are told to or when the script says so.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_AGENT_H_
#define LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_AGENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/machines/agent_shell.h"
#include "tests/scenarios/scripted_worker.h"

namespace lockstep::coordinator {

class ScriptedAgent : public simulation::AgentShell {
 public:
  // Makes the process that is to start on this agent's host.
  using MakeWorker = std::function<std::shared_ptr<ScriptedWorker>(
      simulation::Host*, const launcher::agent_action::Start&)>;
  using Workers = std::map<std::string, std::shared_ptr<ScriptedWorker>>;  // by incarnation

  // `name` is what the script calls it, and `hello` what it says of itself.
  ScriptedAgent(simulation::Timeline* timeline, simulation::Host* host, std::string name,
                AgentHello hello, launcher::AgentMachineOptions options,
                simulation::Dial<AgentMessage, AgentCommand> dial, MakeWorker make_worker, Say say);

  // Takes over the processes of an agent that died alone; before Start.
  void Adopt(ScriptedAgent& before);
  void Start() { OpenSession(); }
  void Leave(bool kill, bool save);
  // Its processes end with it, or go on without it.
  void Die(bool alone);

  const std::string& name() const { return name_; }
  const Workers& workers() const { return workers_; }
  bool died_alone() const { return alone_; }
  std::string Standing() const;

 protected:
  AgentHello Hello() const override;
  void OnCommand(const AgentCommand& command) override;
  void OnStart(const launcher::agent_action::Start& start) override;
  void OnTerminate(const launcher::agent_action::Terminate& terminate) override;
  void OnSaveAndLeave(const launcher::agent_action::SaveAndLeave& leave) override;
  void OnKill(const launcher::agent_action::Kill& kill) override;
  void OnForget(const launcher::agent_action::Forget& forget) override;
  void OnSendFiles(const launcher::agent_action::SendFiles& files) override;
  void OnReport(const launcher::agent_action::Report& report) override;
  void OnWarn(const launcher::agent_action::Warn& warning) override;

 private:
  void Listen(ScriptedWorker& worker);
  void OnWorkerEnd(ScriptedWorker& worker);
  void Tell(const std::string& what) const;
  // Ends the process soon, if there is one.
  void EndSoon(const std::string& incarnation, int exit_code, int signal);

  const std::string name_;
  const AgentHello hello_;
  const MakeWorker make_worker_;
  const Say say_;
  Workers workers_;
  std::set<std::string> asked_;            // those that were told to end
  std::map<std::string, int64_t> deaths_;  // their order
  bool alone_ = false;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_AGENT_H_
