// SPDX-License-Identifier: Apache-2.0
// A coordinator's core with agents and workers that do just what a scenario's commands say.
//
//   agent NODE [slots=4] [host=H] [life=1] [gpus=0] [private] [running=j.0,j.1] [version=1]
//   agent-gone NODE
//   started W [pid=100]      died W order=1      log W line="..."
//   exit W [code=0] [signal=0] [order=1] [wanted] [line="..."] [error="..."] [unfit]
//   health NODE [problem="..."]                  what its agent's checks found
//   drain NODE [reason="..."] [user=ann]         undrain NODE
//   hello W [pid=100] [version=1]                worker-gone W
//   ready W [plan=p] [device=d] [seen=0] [step=N] [session=OLD] [data=HASH [bytes=1000]]
//   beat W... [step=0] [stands] [first] [resumed=0]   peer-lost W rank=1 [generation=1]
//          [kind=DIED] [detail="..."]
//   does W... [ACTIVITY] [for=RANK] [sequence=N] [completed=N] [reductions=N] [last=N] [waited=1s]
//          [trained=1s]      what its heartbeats say from now on: with `for` it waits in a
//          reduction
//   checkpoint W step=20 [generation=1]           one that is there whole and is to appear
//   finished W [steps=10] [drained]              failed W code=13 message="..."
//   eval W step=10 accuracy=0.9
//   submit J [nodes=1] [nproc=1] [shards=8] [priority=0] [detect=5s] [start=10m] [device=auto]
//          [mixed] [request=ID] [restarts=0] [min=N] [max=N] [standby=0] [resume=auto]
//          [ranks=3,1] [rank0=NODE] [by=gpu]
//   up J                     its agents, workers and their first generation, in order
//   cancel J [kill]          tick 5s [beat=W,W] [stands=W,W] [step=1]  pause 10s
//   scale J workers=N        keep ended=N [for=5m] [node=1h]: what is forgotten (retention.h)
//   restart                  everything but the rows is lost           show
//   describe J [all]         what is told of its stall, its straggler, its moves and its faults,
//   and
//                            what its workers have of their nodes
//
// After each command another coordinator is made from the rows and must know the same.
//
// W is "j.2": the newest life of place 2 of job j; "j.2.1" is its first one. `tick` lets time pass
// as the service does, with heartbeats of the named workers every 100 ms and of all agents but
// those of mute=NODES every second; `pause` lets it pass unseen; `held` and `released` are what an
// outbox says whose journal stalls. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_WORLD_H_
#define LOCKSTEP_TESTS_SCENARIOS_WORLD_H_

#include <map>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
#include "tests/scenarios/effects_text.h"
#include "tests/scenarios/script.h"

namespace lockstep::coordinator {

class World {
 public:
  // Carries the command out and returns what the coordinator did, at least one line.
  std::vector<std::string> Do(const Command& command);

 private:
  using Lines = std::vector<std::string>;

  void Take(const Event& event);
  void Describe(const Command& command);
  void DescribeQueue(const JobStatus& status);
  void SetQuota(const Command& command);
  void Usage(const Command& command);
  void Submit(const Command& command);
  SessionId Connect(const Command& command);
  void Agent(const Command& command);
  // Something that an agent says about a worker.
  bool AgentReport(const Command& command);
  // Something that a worker says.
  bool WorkerReport(const Command& command);
  void SetDoing(const std::string& worker, const Command& command);
  void Beat(const std::string& worker, int64_t step, bool stands, bool first = false);
  void Tick(const Command& command);
  void AgentsBeat(const std::vector<std::string>& mute);
  void Up(const std::string& job);
  void Restart();
  void CheckRestored();
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
  int64_t resumed_ = 0;  // what the next heartbeats say
  struct Doing {
    absl::Time since;
    WorkerHeartbeat heartbeat;
  };
  std::map<std::string, Doing> doings_;
  Lines lines_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_WORLD_H_
