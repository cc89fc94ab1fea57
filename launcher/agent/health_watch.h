// SPDX-License-Identifier: Apache-2.0
// Keeps looking whether work can be done on this host (health_check.h), on a thread of its own,
// since a disk may not answer. It looks when it begins, when a job's first worker is about to
// start, and again every minute while something is wrong. The disk of a job's run is not its
// affair (RunDisk). Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_HEALTH_WATCH_H_
#define LOCKSTEP_LAUNCHER_AGENT_HEALTH_WATCH_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"

namespace lockstep::launcher {

class HealthWatch {
 public:
  struct Options {
    std::vector<std::string> folders;  // the agent's own
    // Tries the GPUs; returns what is wrong with them, or nothing. Null: there are none to try.
    // Called on the watch's thread; may block.
    std::function<std::string()> examine_gpus;
    std::function<std::string(const std::string& folder)> examine_disk;  // null: the real
    absl::Duration again = absl::Minutes(1);
    // A look that takes longer is a finding itself.
    absl::Duration patience = absl::Seconds(10);
    Clock* clock = Clock::Real();
  };
  explicit HealthWatch(Options options);
  // Waits for what is under way.
  ~HealthWatch();

  // Begins nothing more, and waits for what is under way, `timeout` at most. Returns what is being
  // looked at still, a folder or the GPUs, in words; empty: nothing.
  std::string Stop(absl::Duration timeout);

  // Why no work can be done here; empty: it can.
  std::string problem() const;
  // Waits until the first look at all but the GPUs is over, `timeout` at most. Returns whether it
  // is.
  bool AwaitFirst(absl::Duration timeout);
  // Looks now, and calls `done` on the watch's thread with what is wrong. Does not block.
  using Done = std::function<void(const std::string& problem)>;
  void Ask(Done done);

 private:
  void Run();
  // Looks at everything but the GPUs. Returns what is wrong, also with these. As long as it takes
  // the node is not known to be well.
  std::string Look();
  std::string LookAtFolders();
  // Returns whether it may begin; what it looks at is `what` then.
  bool BeginLook(const std::string& what);
  void EndLook();
  void TryGpus();

  const Options options_;
  mutable absl::Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool looked_ ABSL_GUARDED_BY(mu_) = false;
  std::string looking_at_ ABSL_GUARDED_BY(mu_);
  absl::Time looking_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::string problem_ ABSL_GUARDED_BY(mu_);
  std::string gpu_problem_ ABSL_GUARDED_BY(mu_);
  std::vector<Done> questions_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_HEALTH_WATCH_H_
