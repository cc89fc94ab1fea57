// SPDX-License-Identifier: Apache-2.0
// What an agent has to do to get from the workers that it has to those that it shall have. Pure, so
// that every order of events is tested without a process.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_AGENT_RECONCILE_H_
#define LOCKSTEP_LAUNCHER_AGENT_RECONCILE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// How long a worker of the job may take between SIGTERM and SIGKILL.
absl::Duration EndGrace(const JobSpec& spec);

// One worker that the agent knows.
struct WorkerView {
  enum class Phase {
    kRunning,  // asked for or running
    kEnding,   // was sent SIGTERM
    kKilled,   // was sent SIGKILL
    kExited,
  };
  std::string incarnation;
  std::string job_id;
  Phase phase = Phase::kRunning;
  absl::Time kill_at = absl::InfiniteFuture();  // kEnding: when its grace is over
  bool acknowledged = false;                    // kExited: the coordinator has its exit record
  // kRunning and not wanted: it is not ended before this, unless it is named to be killed.
  absl::Time spared_until = absl::InfinitePast();
};

struct ReconcileActions {
  std::vector<int> start;                    // indices into desired.workers()
  std::vector<std::string> terminate;        // incarnations: SIGTERM, later SIGKILL
  std::vector<std::string> kill;             // incarnations: SIGKILL now
  std::vector<std::string> forget;           // incarnations: exited, acknowledged and not wanted
  absl::Time next = absl::InfiniteFuture();  // when to look again without any event
};

// A worker that has exited is never started again under its incarnation, and it is remembered as
// long as it is wanted, since the wish may be older than the acknowledgement.
ReconcileActions Reconcile(const DesiredWorkers& desired, const std::vector<WorkerView>& workers,
                           absl::Time now);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_RECONCILE_H_
