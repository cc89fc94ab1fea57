// SPDX-License-Identifier: Apache-2.0
// What must hold of the queue, looked at after the coordinator's steps; what it counts, it counts
// by itself:
//   - no overcommit: a node runs no more processes that live on than it has slots, and a user has
//   no more slots
//     and jobs than the quota;
//   - work-conserving: the first one that waits does not wait for long while there is room for it,
//   and whoever could start is soon looked at;
//   - no starvation: nobody starts in a place where one of higher priority that waits has room, and
//     does not delay by it the one for whom room is kept; and whoever starts, that one has it no
//     later.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_QUEUE_CHECKER_H_
#define LOCKSTEP_TESTS_SIMULATION_QUEUE_CHECKER_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/core.h"

namespace lockstep::simulation {

class AgentProcess;
class CoordinatorProcess;
class World;

class QueueChecker {
 public:
  explicit QueueChecker(World* world) : world_(world) {}

  // A new coordinator has read the journal.
  void OnBegin();
  void AfterStep(const CoordinatorProcess& coordinator);
  // The agent starts one more process.
  void OnProcess(const AgentProcess& agent) const;
  // The coordinator's books when all is over: nobody has anything of a node.
  void AtEnd(const CoordinatorProcess& coordinator) const;

 private:
  using Holds = std::map<std::string, int>;  // slots by node
  struct Kept {                              // room for the first one that waits
    std::string job;
    absl::Time when = absl::InfiniteFuture();
    std::map<std::string, absl::Time> nodes;
    struct Running {
      absl::Time started;
      Holds holds;
      Holds serving;  // of these, without what is to leave
      absl::Time ends;
    };
    std::map<std::string, Running> running;
  };

  void CheckQuotas(const coordinator::State& state) const;
  void CheckStarts(const coordinator::State& state, absl::Time now);
  void CheckIdle(const coordinator::State& state, absl::Time now);
  void CheckKept(const coordinator::State& state, absl::Time now);

  World* const world_;
  std::map<std::string, JobState> before_;  // by job, when it was last looked at
  std::set<std::string> waited_;            // jobs that might have started then
  std::set<std::string> open_;              // nodes that got work then
  int64_t serial_ = 0;                      // of the newest event then
  std::map<std::string, absl::Time> idle_;  // by job: since when it has room and waits
  std::string could_start_;  // that a pass over the queue would start now; empty: nobody
  absl::Time could_start_since_;
  Kept kept_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_QUEUE_CHECKER_H_
