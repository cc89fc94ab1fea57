// SPDX-License-Identifier: Apache-2.0
// What must hold whatever happens. It is told of everything, knows more than any part of the
// system, and keeps the first thing that was wrong:
//   - a job whose submission was answered is never lost, and is one job;
//   - a final state is final, also for the next coordinator;
//   - nobody who is known to be dead is in a generation that is formed;
//   - a generation's number means one membership; a worker is told of those it is in; one that was
//     ended is not gone on with by the next coordinator;
//   - members of a generation begin within a step of each other, each commit follows the one
//   before,
//     and an older generation commits after a newer one only where it was cut off;
//   - no worker is ended that is well, and whose job is: what the coordinator itself suffers (a
//     slow or full disk, a pause, its own death) counts against nobody;
//   - who is said to be silent, to stand still or not to leave is ill, or its host or link is;
//   - what a lost node costs is no restart;
//   - the times that a failure took follow each other;
//   - no step is lost without a fault: where agents leave, others take over or the state is saved;
//   - no generation begins behind somebody who lives and is well, or was and has been ended;
//   - of the lines of workers none is left out that was not on its way when a connection broke;
//   - nothing is started on a node that is silent;
//   - whoever obeys, obeys the highest epoch that it knows;
//   - what an agent may forget is known to every later coordinator, and so is that a job is to end;
//   - a worker's row in the journal is what the coordinator knows of it, and each place that works
//   has a worker, or one
//     that waits for a node;
//   - a user's request that was carried out is not in the journal any more, from which the next
//   coordinator would carry it out again;
//   - the coordinator does not go round in circles, nor do a job's generations;
//   - when the faults are over each job ends as it should, no process of it is left, and the
//     coordinator knows of none.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_CHECKER_H_
#define LOCKSTEP_TESTS_SIMULATION_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "tests/machines/host.h"

namespace lockstep::simulation {

class CoordinatorProcess;
struct SimulatedJob;
class World;
class WorkerProcess;

class Checker {
 public:
  explicit Checker(World* world) : world_(world) {}

  void Fail(const std::string& what);
  const std::string& failure() const { return failure_; }

  // ---- the coordinator ----
  void OnBegin(const CoordinatorProcess& coordinator);
  // The coordinator goes on after it was stopped, with what came meanwhile yet to be read.
  void OnContinue();
  void AfterStep(const CoordinatorProcess& coordinator);
  void OnTold(const CoordinatorProcess& coordinator, const coordinator::Append& append);
  void OnHeard(const AgentMessage& message, const Process& client);
  void OnHeard(const WorkerMessage& message, const Process& client);
  // A user was shown that a job has ended so.
  void OnShown(const std::string& job_id, JobState final);
  void OnAccepted(const std::string& job_id);
  // Returns whether nothing was wrong with the coordinator and its disk since then.
  bool IsSteadySince(absl::Time then) const;
  // Times that somebody wanted the node emptied, and was not refused.
  int& drains(const std::string& node) { return drains_[node]; }

  // ---- agents ----
  // Between these what the agent does follows from a command; of an `old` coordinator nothing may.
  void BeginCommand(bool old) { in_old_command_ = old; }
  void EndCommand() { in_old_command_ = false; }
  void OnAgentActs(const std::string& what);
  void OnForgotten(const std::string& incarnation) { forgotten_.insert(incarnation); }
  void OnEndedByAgent(const WorkerProcess& worker);

  // ---- workers ----
  void OnStart(WorkerProcess& worker);
  void OnDeath(WorkerProcess& worker);
  void OnObeyed(const std::string& incarnation, int64_t highest, int64_t epoch);
  void OnGenerationTold(const std::string& job_id, int64_t generation);
  void OnAbortTold(const std::string& job_id, int64_t generation);
  // Both have the same number.
  void CheckSameGeneration(const std::string& job_id, const Generation& one,
                           const Generation& other);
  // The step after which a generation with these members begins.
  int64_t StartOf(const Generation& generation, const std::vector<const WorkerProcess*>& members);
  // A generation begins after this step, of its members or of a checkpoint.
  void OnEnter(const std::string& job_id, int64_t generation, int64_t step);
  void OnCommit(const WorkerProcess& worker, int64_t generation, int64_t before, int64_t step);
  void OnModel(const std::string& job_id, int64_t step, bool drained);

  // All faults are over and the time to end has passed.
  void AtEnd();

 private:
  struct Told {
    JobState final = JOB_STATE_UNSPECIFIED;
    int64_t formed = 0;      // the newest generation
    int64_t generation = 0;  // the newest that a worker was told
    int64_t aborted = 0;     // the newest of which a worker was told that it is over
    int64_t committing = 0;  // the newest generation that has committed
    int64_t newest_step = 0;
    absl::Time stepped;  // when that was
    // The newest step that somebody had who was well and was ended, until others have gone on with
    // it; and who that was.
    int64_t ended_with = -1;
    std::string ended;
    bool model = false;
    int64_t paced_from = 0;  // the first generation formed since then, for a second
    absl::Time paced_since = absl::InfinitePast();
  };

  // Returns whether the worker, if it lives, may be given up for a fault of its own, of its host or
  // of its link, or since its agent leaves.
  bool MayBeGivenUp(const WorkerProcess& worker) const;
  bool IsLetGo(const WorkerProcess& worker) const;
  bool IsPreempted(const WorkerProcess& worker) const;
  // A fault explains what becomes of the job's workers.
  bool Disturbed(const std::string& job_id) const;
  void CheckPlacement(const CoordinatorProcess& coordinator, const coordinator::Job& job);
  // Whom the coordinator finds guilty is ill.
  void CheckVerdict(const coordinator::Worker& worker);
  // Each place that works has somebody, or somebody is to come.
  void CheckPlaces(const coordinator::Job& job);
  void CheckCosts(const coordinator::Job& job);
  // A worker that is not heard of on a node that is counts as one that failed.
  void NoteSilence(const coordinator::Worker& worker, SimulatedJob& job);
  void CheckJob(const CoordinatorProcess& coordinator, const coordinator::Job& job);
  void CheckMembers(const coordinator::Job& job);
  void CheckPace(const std::string& job_id, Told& told);
  void CheckRequests(const CoordinatorProcess& coordinator);
  // It may end so.
  void CheckEnd(const std::string& job_id, JobState state, const std::string& reason);

  World* const world_;
  std::string failure_;
  std::set<std::string> accepted_;
  std::map<std::string, Told> told_;                          // by job
  std::unordered_map<std::string, absl::Time> heard_;         // by node
  absl::Time unsteady_ = absl::InfinitePast();                // the coordinator was, until then
  std::unordered_map<std::string, absl::Time> worker_heard_;  // by incarnation
  std::unordered_map<std::string, absl::Time> back_;          // nodes, after a silence
  // Whose verdicts were looked at: incarnations, and whether they were lost with their nodes.
  std::set<std::pair<std::string, bool>> judged_;
  std::set<std::string> placed_;       // lives, by incarnation and node
  std::map<std::string, int> drains_;  // by node
  std::set<std::string> forgotten_;
  std::map<std::string, std::set<WorkerProcess*>> alive_;  // by job
  bool in_old_command_ = false;
  absl::Time stepped_ =
      absl::InfinitePast();  // the coordinator last did; its wakes before that time
  int64_t woken_ = 0;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_CHECKER_H_
