// SPDX-License-Identifier: Apache-2.0
// A host of a run over several hosts that has no coordinator: its workers, for as long as the job
// runs. How it comes to know of its run is its owner's affair (run_as_guest.h, ordered_guest.h).
// Thread-safety: thread-compatible, but for Release.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_GUEST_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_GUEST_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "coordinator/client/client.h"
#include "launcher/agent/agent.h"
#include "launcher/follow/renderer.h"
#include "launcher/local_run/run_end.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

// What a guest knows of its run.
struct GuestPlan {
  // Where the coordinator may be reached, best first, and the token to show there.
  std::vector<std::string> endpoints;
  std::string token;
  int slots = 1;
  absl::Duration patience;  // until the coordinator answers and has a job
  std::string run_dir;      // as in AgentOptions
  std::string runs_dir;
  std::string interfaces;
  std::string checkpoint_dir;  // of the job; empty: it saves nothing
  std::string awaited;         // who has the coordinator, for people
  std::string advice;          // when no run appears
  // Called when the agent is there. May be empty.
  std::function<void()> on_ready;
  // It stays when the job has ended, for a minute at most, until it is released: the run's files
  // are fetched meanwhile.
  bool stays = false;
};

class Guest {
 public:
  // Says what the plan is, or why there is none. Called once, by Run.
  using Planner = std::function<absl::StatusOr<GuestPlan>()>;
  Guest(Planner planner, Spawner* spawner);

  // Blocks to the end; returns the exit code, as RunAsGuest says.
  int Run();
  // Whoever began the run is gone, or has no more use for this guest. Before the agent is there,
  // and after the job's end, it leaves at once; in between it does as soon as the coordinator is
  // seen to be gone, too. Blocks for some seconds at most. Thread-safe.
  void Release() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<JobStatus> RunJob();
  absl::Status StartAgent(const GuestPlan& plan, const coordinator::ClientOptions& coordinator);
  // Finds the coordinator and the run's one job. Sets client_.
  absl::StatusOr<std::string> AwaitJob(const GuestPlan& plan,
                                       coordinator::ClientOptions* coordinator);
  // The workers save what they have and leave; says what came of it.
  absl::Status SaveAndLeave(const GuestPlan& plan, const std::string& endpoint);
  void AwaitRelease();
  // At the agent's end.
  void OnHungDisk(const std::string& what);
  // Says how the job ended, `signals` counted; returns the exit code.
  int Finish(const absl::StatusOr<JobStatus>& ended, int signals, bool lost);

  // On other threads.
  void OnSignal(int count);
  void OnLost();
  bool stopped() ABSL_LOCKS_EXCLUDED(mu_);
  void Stop(bool kill) ABSL_LOCKS_EXCLUDED(mu_);

  const Planner planner_;
  Spawner* const spawner_;
  Renderer renderer_;
  HungDisk hung_disk_{&renderer_};
  bool stays_ = false;               // GuestPlan::stays
  absl::StatusOr<JobStatus> ended_;  // what RunJob has returned

  absl::Mutex mu_;
  CondVar changed_;
  int signals_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;    // what is left is the agent's end
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;   // by a signal: nothing is waited for any more
  bool lost_ ABSL_GUARDED_BY(mu_) = false;      // the spawner
  bool released_ ABSL_GUARDED_BY(mu_) = false;  // by its owner
  bool gone_ ABSL_GUARDED_BY(mu_) = false;      // the coordinator, as Release saw
  bool over_ ABSL_GUARDED_BY(mu_) = false;      // the job, or its coordinator
  std::shared_ptr<coordinator::Client> client_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Agent> agent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_GUEST_H_
