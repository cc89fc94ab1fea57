// SPDX-License-Identifier: Apache-2.0
// Users who share a cluster: more jobs than it has room for, of several users with quotas, with
// priorities and time limits; some wait for others, some are held and released, and now and then
// one is cancelled. Draws its own numbers, so that a seed's faults are the same without it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_QUEUE_USERS_H_
#define LOCKSTEP_TESTS_SIMULATION_QUEUE_USERS_H_

#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "tests/machines/timeline.h"

namespace lockstep::simulation {

class World;
struct SimulatedJob;
struct SimulationOptions;

class QueueUsers {
 public:
  explicit QueueUsers(World* world);

  // Sets what the seed's users may have at once.
  static void SetQuotas(SimulationOptions& options);
  std::vector<SimulatedJob> MakeJobs(int max_restarts);
  // Names those that it waits for. False: they are not accepted yet.
  bool CompleteRequest(SimulatedJob& job) const;
  // From now until then; afterwards it releases whoever is held, as often as it takes.
  void Begin(absl::Time until);

 private:
  SimulatedJob MakeJob(int number, int max_restarts);
  void Next();
  void Scale(SimulatedJob& job);
  // A job that has let workers go for another one; null: none has.
  SimulatedJob* OneThatLends() const;
  void ReleaseAll();

  World* const world_;
  Random random_;
  Random scaling_;  // of its own, so that what else users do is the same without it
  absl::Time until_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_QUEUE_USERS_H_
