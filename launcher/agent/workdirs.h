// SPDX-License-Identifier: Apache-2.0
// The workdirs of jobs that came as packages: a thread takes them from the coordinator and unpacks
// one for each run, in its folder. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_WORKDIRS_H_
#define LOCKSTEP_LAUNCHER_AGENT_WORKDIRS_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/client/package_store.h"
#include "coordinator/client/packages.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

class Workdirs {
 public:
  struct Settings {
    std::unique_ptr<coordinator::PackagesClient> client;
    // Where packages are kept between jobs; empty: in memory.
    std::string folder;
    // As in WorkerProcess::Node.
    bool own_run_folder = false;
    bool as_users = false;
    bool allow_root = false;
    // Between two tries to get a package.
    absl::Duration try_again = absl::Milliseconds(250);
  };
  explicit Workdirs(Settings settings);
  // Breaks off what is under way; what was asked for and is not done is forgotten.
  ~Workdirs();

  // Makes the folder in which the assignment's worker starts, if it is not there, and calls `done`
  // on the thread of this class. Does not block. `done`'s errors: Unavailable (the coordinator does
  // not give the package), DataLoss, those of writing.
  void Prepare(const WorkerAssignment& assignment, std::function<void(const absl::Status&)> done);

 private:
  struct Wish {
    WorkerAssignment assignment;
    std::function<void(const absl::Status&)> done;
  };
  void Loop();
  absl::Status Make(const WorkerAssignment& assignment);
  absl::StatusOr<std::string> Take(const std::string& id);
  bool stopped() ABSL_LOCKS_EXCLUDED(mu_);

  const Settings settings_;
  coordinator::PackageStore kept_;
  absl::Mutex mu_;
  CondVar changed_;
  std::deque<Wish> wishes_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;  // last: uses the rest
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_WORKDIRS_H_
