// SPDX-License-Identifier: Apache-2.0
// A cluster in one process with virtual time: a coordinator, its disk, agents and workers, all of
// the product's own machines, on hosts and links that fail as the seed says.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_WORLD_H_
#define LOCKSTEP_TESTS_SIMULATION_WORLD_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/machines/coordinator_process.h"
#include "tests/machines/disk.h"
#include "tests/machines/host.h"
#include "tests/simulation/agent_process.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/drains.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/group.h"
#include "tests/simulation/queue_checker.h"
#include "tests/simulation/queue_users.h"
#include "tests/simulation/users.h"

namespace lockstep::simulation {

struct SimulationOptions {
  uint64_t seed = 1;
  int agents = 3;
  int slots = 2;
  bool faults = true;
  bool drains = false;  // nodes are drained and given back
  bool users = false;   // jobs have spares, are scaled and cancelled
  bool queue = false;   // there are more jobs than room, of users with quotas
  bool verbose = false;
  bool measure = false;  // CPU of the coordinator
  absl::Duration detection = absl::Seconds(5);
  absl::Duration worker_beat = absl::Milliseconds(500);
  absl::Duration quiet = absl::Seconds(600);  // in which all jobs end when the faults are over
  coordinator::Options limits;
};

struct SimulatedJob {
  std::string name;
  SubmitJobRequest request;
  int64_t steps = 0;
  absl::Duration step_time;
  absl::Duration submitted;  // after the start
  std::string accepted;      // its id, once a client has it; empty: not yet
  int tries = 0;
  int64_t checkpoint = 0;  // the newest that is durable
  int scaled = 0;          // times that a user asked for another number, and was not refused
  int cancelled = 0;       // and for its end
  bool is_to_end = false;  // and was told that it ends
  int64_t waits_for = -1;  // another one's end, by its place; -1: nobody's
  bool waits_for_success = false;
  int own_failures = 0;  // of its workers, by faults that are no node's
  absl::Time disturbed = absl::InfinitePast();
};

class World : public Surroundings {
 public:
  explicit World(SimulationOptions given);
  ~World() override;

  // The seed's history. Empty: all was well; else what was wrong.
  std::string Run();

  const SimulationOptions options;
  Timeline timeline;
  Disk disk;
  Checker checker;
  QueueChecker queue_checker;
  std::vector<SimulatedJob> jobs;
  std::vector<std::unique_ptr<Host>> hosts;  // 0 is the coordinator's
  std::vector<std::shared_ptr<AgentProcess>> agents;
  std::shared_ptr<CoordinatorProcess> coordinator;
  // Those whose place another one took while they were stopped.
  std::vector<std::shared_ptr<CoordinatorProcess>> replaced;

  // Less happens to each part of a large cluster, and for a shorter time.
  bool IsLarge() const { return options.agents > 200; }
  absl::Duration Age() const { return timeline.now() - began_; }
  int64_t NextPid() { return ++pids_; }
  // Of the job with this id ("job-2.1": the second of the first try).
  SimulatedJob& JobOf(const std::string& job_id);
  // How it stands, in a sentence.
  std::string Standing(const std::string& job_id) const;
  std::shared_ptr<Group> GroupOf(const std::string& job_id, int64_t generation);
  void SaveCheckpoint(const std::string& job_id, int64_t step);
  void OnWorkerDeath(WorkerProcess& worker);
  void OnFirstReady(const std::shared_ptr<WorkerProcess>& worker) { faults_.OnFirstReady(worker); }
  // All members have done the last step; the first one makes the model durable.
  void OnLastStep(const std::vector<std::shared_ptr<WorkerProcess>>& members) {
    faults_.OnLastStep(members);
  }
  void Say(const std::string& what) const;
  // Asks the coordinator, if there is one. `asked` outlives the world's history and counts what was
  // asked and was not refused.
  void Ask(const coordinator::Event& event, int* asked = nullptr,
           std::function<void(const coordinator::Answer&)> answer = nullptr);

  // ---- the network ----
  Dial<AgentMessage, AgentCommand> DialAgent();
  Dial<WorkerMessage, WorkerCommand> DialWorker();
  // Connections that nothing gets through are given up when their keepalive says so.
  void CheckConnectionsLater();
  // Those of the host are given up.
  void ResetConnections(const Host& host);

  // ---- processes ----
  void StartAgent(size_t index);
  void StartCoordinator();
  void CrashCoordinator();
  // Another one takes the journal and the address of the coordinator, which is stopped. Some hosts
  // do not notice and stay connected to the old one. Returns it.
  std::shared_ptr<CoordinatorProcess> ReplaceCoordinator();
  // No other one has taken its place.
  bool IsCurrent(const CoordinatorProcess& process) const { return coordinator.get() == &process; }

  // ---- what a coordinator has around it ----
  void Write(CoordinatorProcess& process, std::vector<coordinator::Row> rows) override;
  void OnBroken(CoordinatorProcess& process) override;
  void OnBegin(const CoordinatorProcess& process) override { checker.OnBegin(process); }
  void AfterStep(const CoordinatorProcess& process) override;
  void OnHeard(const CoordinatorProcess& process, const AgentMessage& message,
               const Process& client) override;
  void OnHeard(const CoordinatorProcess& process, const WorkerMessage& message,
               const Process& client) override;
  void OnTold(const CoordinatorProcess& process, const coordinator::Append& told) override {
    checker.OnTold(process, told);
  }
  void OnConnection(const std::shared_ptr<Breakable>& connection) override;
  // Workers are sent the number of a generation alone: that number and members belong together is
  // looked at here, and a generation's members are in memory once.
  WorkerCommand CommandFor(const Process& client, coordinator::ToWorker message) override;

 private:
  void NoteGeneration(const std::string& job_id, std::shared_ptr<const Generation> generation);
  void MakeJobs();
  void Submit(size_t index);
  void OnAnswer(size_t index, const coordinator::Answer& answer);
  void GiveUpDeadConnections();
  // Who answers at the coordinator's address: mostly the newest.
  CoordinatorProcess* Listener(const Process& client);
  // Some lose their connection to the newest coordinator, and their next ones reach the one before.
  void LeadAstray();
  bool Over() const;

  absl::Time began_;
  int64_t pids_ = 1000;
  int agent_lives_ = 0;
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<const Generation>> generations_;
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<Group>> groups_;
  std::vector<std::weak_ptr<Breakable>> connections_;
  std::set<const Host*> astray_;  // of the next agent or worker that connects from there
  Faults faults_;
  Drains drains_;
  Users users_;
  QueueUsers queue_users_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_WORLD_H_
