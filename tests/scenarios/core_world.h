// SPDX-License-Identifier: Apache-2.0
// A coordinator's core with agents and workers that do just what a scenario's commands say.
//
// Users' requests are those of requests.h; what agents and workers say those of peer_messages.h,
// and
//   agent NODE .. [running=j.0,j.1] [ended=j.2]   agent-gone NODE
//   agent-leaves NODE [grace=S]      health NODE [problem="..."], as its agent's checks found
//   started W [pid=100]      hello W [pid=100] [version=1]      worker-gone W
//   ready W .. [session=OLD]
//   beat W... [step=0] [stands] [first] [resumed=0] [restored=1s] [session=OLD]
//   does W... [ACTIVITY] [saving|evaluating] [for=RANK] [sequence=N] [completed=N]
//          [reductions=N] [last=N] [waited=1s] [trained=1s]      what its heartbeats say from now
//          on: with `for` it waits in a reduction
//   up J                     its agents, workers and their first generation, in order
//   tick 5s [beat=W,W] [stands=W,W] [step=1]     pause 10s
//   held                     released
//   restart [5m]             everything but the rows is lost
//   show
//
// After each command another coordinator is made from the rows and must know the same, and would
// write each of them as it is. A word that no command reads is an error.
//
// W is "j.2": the newest life of place 2 of job j; "j.2.1" is its first one. `tick` lets time pass
// as the service does, with heartbeats of the named workers every 100 ms and of all agents but
// those of mute=NODES every second; `pause` lets it pass unseen; `held` and `released` are what an
// outbox says whose journal stalls. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_CORE_WORLD_H_
#define LOCKSTEP_TESTS_SCENARIOS_CORE_WORLD_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
#include "tests/scenarios/effects_text.h"
#include "tests/scenarios/script.h"
#include "tests/scenarios/world.h"

namespace lockstep::coordinator {

class CoreWorld : public World {
 public:
  // Carries the command out and returns what the coordinator did, at least one line.
  std::vector<std::string> Do(const Command& command) override;

 private:
  using Lines = std::vector<std::string>;

  void Take(const Event& event);
  SessionId Connect(const Command& command);
  void Agent(const Command& command);
  // Something that an agent says about a worker.
  bool AgentReport(const Command& command);
  // Something that a worker says.
  bool WorkerReport(const Command& command);
  void SetDoing(const std::string& worker, const Command& command);
  void Beat(const std::string& worker, int64_t step, bool stands, bool first, SessionId session);
  void Tick(const Command& command);
  // Returns whether the worker's job has had a generation, in which it may have made a step.
  bool HasGeneration(const std::string& worker) const;
  void AgentsBeat(const std::vector<std::string>& mute);
  void Up(const std::string& job);
  void Restart();
  void CheckRestored();
  void CheckRows(State restored);
  // The state of a coordinator that begins with the rows.
  absl::StatusOr<State> Rows() const;
  std::string Incarnation(const std::string& worker) const;
  WorkerMessage From(const std::string& worker) const;

  State state_;
  absl::Time now_ = absl::UnixEpoch();
  absl::Time wake_at_ = absl::InfiniteFuture();
  std::map<std::string, std::string> rows_;
  SessionId last_session_ = 0;
  Names names_;
  std::map<std::string, SessionId> sessions_;  // by name: "node-a", "j.0"
  std::map<std::string, int64_t> counters_;
  // What the next heartbeats say.
  int64_t resumed_ = 0;
  std::optional<absl::Duration> restored_;
  struct Doing {
    absl::Time since;
    WorkerHeartbeat heartbeat;
  };
  std::map<std::string, Doing> doings_;
  Lines lines_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_CORE_WORLD_H_
