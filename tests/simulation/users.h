// SPDX-License-Identifier: Apache-2.0
// Users of a seed's jobs: they submit them with spares and room to grow, scale them and cancel
// them, at any time of its history. Draws its own numbers, so that a seed's faults are the same
// without it. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_USERS_H_
#define LOCKSTEP_TESTS_SIMULATION_USERS_H_

#include <set>
#include <string>

#include "absl/time/time.h"
#include "coordinator/outbox/batch.h"
#include "tests/machines/timeline.h"

namespace lockstep::simulation {

class World;
struct SimulatedJob;

class Users {
 public:
  explicit Users(World* world);

  // Makes a job one that can be scaled, and may have a spare.
  void Prepare(SubmitJobRequest& request);
  // From now until then.
  void Begin(absl::Time until);
  // The coordinator has taken a step. In every fourth seed somebody looks at jobs that have just
  // ended, and the coordinator may die when it has answered.
  void AfterStep();

 private:
  void Next();
  void Scale(SimulatedJob& job);
  void Cancel(SimulatedJob& job);
  // The coordinator may die soon after it answered: what it said holds for the next one.
  void Tempt();

  World* const world_;
  Random random_;
  Random onlooker_;  // its own, as the other's draws are those of seeds that once found a fault
  std::set<std::string> looked_at_;  // these jobs, or not
  absl::Time until_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_USERS_H_
