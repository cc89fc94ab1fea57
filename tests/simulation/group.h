// SPDX-License-Identifier: Apache-2.0
// The data plane of one generation: its members come together, bring each other to the same state,
// and step. A step is computed by all; when the last one has come, each has the whole gradients at
// a time of its own and commits a little later; none begins the next before all have committed. A
// member that leaves ends an update that it has begun, and has none to end before it has them.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_GROUP_H_
#define LOCKSTEP_TESTS_SIMULATION_GROUP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "tests/machines/timeline.h"

namespace lockstep::simulation {

class World;
class WorkerProcess;

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(World* world, std::string job_id, std::shared_ptr<const Generation> generation);

  void Join(std::shared_ptr<WorkerProcess> worker);
  // It died, or its host did.
  void Gone(WorkerProcess* worker);
  // Ends an update that it has begun, and leaves.
  void LeaveWhenUpdated(WorkerProcess* worker, int lost_rank, const std::string& why);

  // The rank that it waits for, or -1.
  int WaitsFor(const WorkerProcess* worker) const;
  const Generation& generation() const { return *generation_; }

 private:
  enum class At : uint8_t {
    kAway,
    kJoined,
    kEntered,
    kComputing,
    kArrived,
    kReduced,  // it has the step's whole gradients
    kCommitted,
    kLeft,
  };
  struct Place {
    std::shared_ptr<WorkerProcess> worker;
    absl::Time told = absl::InfiniteFuture();  // when it hears that somebody is gone
  };

  int RankOf(const WorkerProcess* worker) const;
  At at(int rank) const { return at_[static_cast<size_t>(rank)]; }
  void Move(int rank, At to);
  // Calls `what` with the rank after `delay` if its worker is still in this group.
  void After(int rank, absl::Duration delay, void (Group::*what)(int));
  void Begin();
  void Enter(int rank);
  void Arrive(int rank);
  void Reduce(int rank);
  void CommitStep(int rank);
  void NextStep();
  void FinishModel(int rank);
  bool All(At at) const { return counts_[static_cast<size_t>(at)] == places_.size(); }
  // The others find out that a member is gone, each at its time.
  void TellAll();
  void TellLoss(int rank);

  World* const world_;
  const std::string job_id_;
  const std::shared_ptr<const Generation> generation_;
  std::unordered_map<std::string, int> ranks_;
  std::vector<Place> places_;  // by rank, as is where they are
  std::vector<At> at_;
  Random reductions_;  // its own, so that a seed's faults are the same without them
  std::array<size_t, 8> counts_{};
  std::set<int> gone_;   // that joined and have left for good, before the end
  int told_of_ = -1;     // of these, whom the others were told of
  bool broken_ = false;  // somebody left: nobody computes another step
  bool over_ = false;    // all steps are done
  bool stop_after_ = false, regroup_after_ = false;  // as the step's headers said
  int64_t start_ = 0;
  int64_t step_ = 0;  // being done
  bool resumed_ = false;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_GROUP_H_
