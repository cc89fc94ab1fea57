// SPDX-License-Identifier: Apache-2.0
// A worker of a script: the control machine and session of a worker, with a main thread that does
// what the script says. In a generation it makes a step before each heartbeat. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_WORKER_H_
#define LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_WORKER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tests/machines/worker_shell.h"
#include "tests/scenarios/script.h"

namespace lockstep::coordinator {

// What is said in the script's text.
using Say = std::function<void(const std::string&)>;

class ScriptedWorker : public simulation::WorkerShell {
 public:
  ScriptedWorker(simulation::Timeline* timeline, simulation::Host* host,
                 const launcher::agent_action::Start& start, int64_t pid,
                 simulation::Dial<WorkerMessage, WorkerCommand> dial, Say say)
      : WorkerShell(timeline, host, start, pid, std::move(dial)), say_(std::move(say)) {}

  void Start();
  // It ended; `exit_code` and `signal` say how. Called once.
  void OnEnd(std::function<void(ScriptedWorker&)> on_end) { on_end_ = std::move(on_end); }
  void End(int exit_code, int signal);
  int exit_code() const { return exit_code_; }
  int signal() const { return signal_; }

  // ---- its main thread ----
  // Enters the newest generation, if there is one that it has not seen.
  void Enter();
  // Says what the command does (peer_messages.h).
  void Report(const Command& command, WorkerMessage message);
  // Its heartbeats go on, and it does not.
  void Stand(bool stands) { stands_ = stands; }

  // What it is part of, in a few words.
  std::string Standing() const;

 protected:
  void OnCommand(const WorkerCommand& command) override;
  void OnAbort(const std::string& reason) override;
  void OnConnection(bool connected, const std::string& reason) override;

 private:
  void BeatLater();
  void LeaveIfTold();

  const Say say_;
  std::function<void(ScriptedWorker&)> on_end_;
  int64_t generation_ = 0;  // that it is in; 0: none
  int64_t seen_ = 0;        // the newest
  int64_t entered_ = 0;     // after this step
  int64_t step_ = 0;        // the last one; each takes as long as a heartbeat
  bool stands_ = false;
  int exit_code_ = 0;
  int signal_ = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_WORKER_H_
