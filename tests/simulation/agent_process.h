// SPDX-License-Identifier: Apache-2.0
// A node's agent: its machine, its session and the processes that it starts and ends.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_AGENT_PROCESS_H_
#define LOCKSTEP_TESTS_SIMULATION_AGENT_PROCESS_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/machines/agent_shell.h"
#include "tests/simulation/worker_process.h"

namespace lockstep::simulation {

class World;

class AgentProcess : public AgentShell {
 public:
  AgentProcess(World* world, Host* host, int slots, int life);

  void Start();
  // Takes over what the agent before, which died alone, has left (DieAlone); before Start.
  void Adopt(const AgentProcess& before);
  // Its processes go on, with their supervisors.
  void DieAlone();
  bool died_alone() const { return alone_; }
  // They end, and nobody is there to tell.
  void EndWorkers();
  // Its user wants it to leave: it keeps its workers for its grace, ends them, and ends. Another
  // one starts so long after that.
  void Leave(absl::Duration away);
  bool leaves() const { return leaving_since_ != absl::InfiniteFuture(); }
  const std::string& life() const { return life_; }
  absl::Duration grace() const { return grace_; }
  // One of its processes says something.
  void OnLine(const WorkerProcess& worker);
  // Returns whether no line before this one is still to be written; later ones are not.
  bool HasWrittenBefore(int64_t line) const;
  // One of its processes ended, by itself or by a fault.
  void OnWorkerDeath(WorkerProcess& worker, int signal);
  const std::map<std::string, std::shared_ptr<WorkerProcess>>& workers() const { return workers_; }

 protected:
  AgentHello Hello() const override;
  void OnCommand(const AgentCommand& command) override;
  void OnNewSession() override;
  void OnWritten(const AgentMessage& message) override;
  void OnStart(const launcher::agent_action::Start& start) override;
  void OnTerminate(const launcher::agent_action::Terminate& terminate) override;
  void OnKill(const launcher::agent_action::Kill& kill) override;
  void OnForget(const launcher::agent_action::Forget& forget) override;
  // One that leaves ends when its workers have.
  void AfterStep() override;
  // Its processes end with it.
  void OnDeath() override;

 private:
  World* const world_;
  const int slots_;
  const std::string life_;
  const absl::Duration grace_;
  std::map<std::string, std::shared_ptr<WorkerProcess>> workers_;
  struct End {
    int signal = 0;
    int64_t order = 0;
  };
  std::map<std::string, End> ends_;  // of its processes
  std::set<std::string> asked_;      // those that were told to end, or killed
  bool alone_ = false;
  int64_t deaths_ = 0;
  int64_t lines_ = 0;
  std::set<int64_t> unwritten_;  // lines that no stream has taken yet
  absl::Time leaving_since_ = absl::InfiniteFuture();
  absl::Duration away_;
  bool through_ = false;
  int64_t obeyed_epoch_ = 0;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_AGENT_PROCESS_H_
