// SPDX-License-Identifier: Apache-2.0
// The run itself, which run_here.h offers. The sources: run_here.cc (from the coordinator's start
// to the exit code) and run_hosts.cc (its hosts: how they join and leave, and the model's way
// here). Thread-safety: as noted.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_LOCAL_RUN_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_LOCAL_RUN_H_

#include <sys/eventfd.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/chaos.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "coordinator/client/client.h"
#include "coordinator/client/files.h"
#include "launcher/agent/agent.h"
#include "launcher/cli/arguments.h"
#include "launcher/follow/renderer.h"
#include "launcher/follow/standard_streams.h"
#include "launcher/local_run/hosts_plan.h"
#include "launcher/local_run/private_coordinator.h"
#include "launcher/local_run/remote_hosts.h"
#include "launcher/local_run/run_end.h"
#include "launcher/local_run/run_lock.h"
#include "launcher/local_run/scale_faults.h"
#include "launcher/local_run/ship_workdir.h"
#include "launcher/local_run/stop_call.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

class LocalRun {
 public:
  // `args` must outlive it.
  LocalRun(const RunArgs& args, Spawner* spawner)
      : args_(args),
        job_(args.job),
        spawner_(spawner),
        interrupt_(::eventfd(0, EFD_CLOEXEC)),
        renderer_(Options(args), std::make_unique<StandardStreams>(), Clock::Real()) {}
  // As RunHere.
  int Run();

 private:
  static constexpr absl::Duration kCallTimeout = absl::Seconds(10);

  static RenderOptions Options(const RunArgs& args) {
    RenderOptions options = RenderOptionsForStderr();
    options.progress = !args.common.quiet;
    // Else all that it waits for is on its way.
    options.pending = args.rendezvous.has_value() || args.hosts.has_value();
    return options;
  }
  PrivateCoordinator::Callbacks CoordinatorCallbacks();
  absl::StatusOr<JobStatus> RunJob();
  // The faults of `launcher chaos`, and what workers have to know of this run for them.
  absl::Status PrepareFaults(const PrivateCoordinator& coordinator, JobSpec* spec);
  // A job of several hosts fits this run or is refused; what the run adds to it.
  absl::Status PrepareHosts(JobSpec* spec) const;
  absl::StatusOr<std::optional<PrivateCoordinator::Network>> NetworkOfRun();
  // This host's agent.
  absl::Status StartAgent(const JobSpec& spec, const coordinator::ClientOptions& coordinator);
  // With --hosts: the others, and their end.
  absl::Status EnterHosts(const JobSpec& spec, const std::string& address);
  void LeaveHosts(const absl::StatusOr<JobStatus>& ended,
                  const coordinator::ClientOptions& coordinator);
  void TakeModel(const JobStatus& ended, const coordinator::ClientOptions& coordinator);
  absl::Status Submit(const SubmitJobRequest& request);
  int Finish(const absl::StatusOr<JobStatus>& ended);
  int ShowEnd(const JobStatus& status, int code);  // returns the exit code

  // On other threads.
  void OnSignal(int count);
  void OnLost(const std::string& what);
  // At the end of this host's agent.
  void OnHungDisk(const std::string& what);
  void OnHostEnded(size_t number, const RemoteEnd& end);
  // Of what comes before the job: for the coordinator, and until it has the workdir.
  void EndWaits();
  void StopEverything() ABSL_LOCKS_EXCLUDED(mu_);

  const RunArgs& args_;
  JobArgs job_;
  std::optional<HostsPlan> plan_;  // with --hosts
  Spawner* const spawner_;
  const UniqueFd interrupt_;  // readable: no need to wait for the coordinator any more
  WorkdirSender workdir_;
  StopCall stop_;
  Renderer renderer_;
  std::vector<chaos::Injection> faults_;
  std::unique_ptr<ScaleFaults> scaler_;  // null: no fault scales the job
  JobStatus known_;                      // what is known of the job without the coordinator
  bool profiled_ = false;                // the run leaves a profile
  RunLock run_lock_;                     // on the folder of --run-dir
  std::string logs_before_;              // with --hosts: what another run left where logs will be
  bool cut_short_ = false;               // by a signal, when the job had ended
  absl::StatusOr<JobStatus> ended_;      // what RunJob has returned
  bool disk_hangs_ = false;              // and is waited for no more
  HungDisk hung_disk_{&renderer_};

  absl::Mutex mu_;
  CondVar changed_;
  int signals_ ABSL_GUARDED_BY(mu_) = 0;
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;  // by a signal: nothing is waited for any more
  std::string lost_ ABSL_GUARDED_BY(mu_);      // which part died, and how
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::string job_id_ ABSL_GUARDED_BY(mu_);
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;    // the job has ended
  std::vector<int> slots_ ABSL_GUARDED_BY(mu_);  // by host, with --hosts
  int slots_left_ ABSL_GUARDED_BY(mu_) = 0;      // on those that take part
  int least_slots_ ABSL_GUARDED_BY(mu_) = 0;     // that the job goes on with
  std::string host_failure_ ABSL_GUARDED_BY(mu_);
  bool runs_command_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration stop_patience_ ABSL_GUARDED_BY(mu_) = kCallTimeout;  // with the coordinator
  std::shared_ptr<coordinator::Client> client_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<coordinator::FilesClient> files_ ABSL_GUARDED_BY(mu_);  // bring the model
  std::shared_ptr<Agent> agent_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RemoteHosts> remote_;  // last: its threads use the rest
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_LOCAL_RUN_H_
