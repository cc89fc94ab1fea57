// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/reconcile.h"

#include <algorithm>
#include <set>

#include "google/protobuf/util/time_util.h"

namespace lockstep::launcher {
namespace {

using google::protobuf::util::TimeUtil;

constexpr absl::Duration kDefaultGrace = absl::Seconds(10);

}  // namespace

absl::Duration EndGrace(const JobSpec& spec) {
  if (!spec.has_preemption() || !spec.preemption().has_grace()) return kDefaultGrace;
  return absl::Nanoseconds(TimeUtil::DurationToNanoseconds(spec.preemption().grace()));
}

ReconcileActions Reconcile(const DesiredWorkers& desired, const std::vector<WorkerView>& workers,
                           absl::Time now) {
  using Phase = WorkerView::Phase;
  ReconcileActions actions;
  std::set<std::string> wanted, known;
  for (const WorkerAssignment& assignment : desired.workers()) {
    wanted.insert(assignment.incarnation());
  }
  const std::set<std::string> kill_jobs(desired.kill_jobs().begin(), desired.kill_jobs().end());
  const std::set<std::string> kill_workers(desired.kill_workers().begin(),
                                           desired.kill_workers().end());
  for (const WorkerView& worker : workers) {
    known.insert(worker.incarnation);
    if (wanted.contains(worker.incarnation)) continue;
    const bool at_once =
        kill_jobs.contains(worker.job_id) || kill_workers.contains(worker.incarnation);
    switch (worker.phase) {
      case Phase::kRunning:
        if (!at_once && now < worker.spared_until) {
          actions.next = std::min(actions.next, worker.spared_until);
          break;
        }
        (at_once ? actions.kill : actions.terminate).push_back(worker.incarnation);
        break;
      case Phase::kEnding:
        if (at_once || worker.kill_at <= now) {
          actions.kill.push_back(worker.incarnation);
        } else {
          actions.next = std::min(actions.next, worker.kill_at);
        }
        break;
      case Phase::kKilled:
        break;
      case Phase::kExited:
        if (worker.acknowledged) actions.forget.push_back(worker.incarnation);
        break;
    }
  }
  for (int i = 0; i < desired.workers_size(); ++i) {
    if (known.insert(desired.workers(i).incarnation()).second) actions.start.push_back(i);
  }
  return actions;
}

}  // namespace lockstep::launcher
