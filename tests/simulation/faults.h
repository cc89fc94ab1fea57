// SPDX-License-Identifier: Apache-2.0
// What goes wrong: each seed picks some kinds of faults, and lets them happen for a while. Then all
// is mended.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_FAULTS_H_
#define LOCKSTEP_TESTS_SIMULATION_FAULTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "tests/machines/host.h"

namespace lockstep::simulation {

class AgentProcess;
class WorkerProcess;
class World;

class Faults {
 public:
  explicit Faults(World* world);

  // Plans them; returns when the last is over.
  absl::Time Begin();
  bool active() const { return active_; }
  // Among them are failures of workers that are no node's.
  bool HurtsWorkers() const;
  // A worker that is ready for its first generation may die before it is formed.
  void OnFirstReady(const std::shared_ptr<WorkerProcess>& worker);
  // Some of those who have done the last step are killed before the model is durable.
  void OnLastStep(const std::vector<std::shared_ptr<WorkerProcess>>& members);
  // Explains what becomes of the host's workers, until it is over and all are back.
  void Explain(Host& host, absl::Duration lasts);

 private:
  using Kind = void (Faults::*)();

  void Next();
  void MendAll();
  Host& SomeNode();
  void ExplainWorker(WorkerProcess& worker, absl::Duration lasts);
  void ExplainAll(absl::Duration lasts);
  // Of a link that is cut: nobody is given up for what lasts no longer than what is `harmless`.
  void ExplainCut(Host& host, absl::Duration lasts, absl::Duration harmless);
  absl::Duration Span(absl::Duration least, absl::Duration most);

  void KillWorker();
  void StopWorker();
  void KillAgent();
  void PowerOff();
  void Cut();
  void CutOneWay();
  void Slow();
  void KillCoordinator();
  void StopCoordinator();
  void ReplaceCoordinator();
  void StallDisk();
  void FillDisk();
  void BreakDisk();
  void JumpWall();
  void Suspend();
  void CutCoordinator();
  void SwizzleClog();
  void ResetLink();
  void Leave();
  // A worker is killed.
  void Kill(const std::shared_ptr<WorkerProcess>& worker);
  void ExplainJobsOn(const Host& host, absl::Duration lasts);
  // Returns whether no step may be lost when this agent leaves now.
  bool LeavesWell(const AgentProcess& agent) const;

  World* const world_;
  std::vector<Kind> kinds_;
  absl::Duration every_;
  absl::Time until_;
  absl::Duration longest_;                        // that a fault lasts
  absl::Time full_until_ = absl::InfinitePast();  // the disk
  bool active_ = false;
  bool kills_early_ = false;
  int early_kills_ = 0;
  Random ends_;  // draws its own numbers
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_FAULTS_H_
