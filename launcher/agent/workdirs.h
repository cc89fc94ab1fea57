// SPDX-License-Identifier: Apache-2.0
// The workdirs of jobs that came as packages: a few threads take them from the coordinator and
// unpack one for each run, in its folder. Those of different jobs are made side by side, so that a
// large one, or one on slow storage, holds up no other job. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_WORKDIRS_H_
#define LOCKSTEP_LAUNCHER_AGENT_WORKDIRS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/client/package_store.h"
#include "coordinator/client/packages.h"
#include "launcher/agent/account.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

class Workdirs {
 public:
  // So many are made side by side.
  static constexpr int kMostAtOnce = 4;
  // So many of them are on their way from the coordinator, which has few places for all nodes.
  static constexpr int kMostTransfers = 2;

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
  // Breaks off what is under way; what was asked for and is not done is forgotten. Waits for what
  // is being unpacked.
  ~Workdirs();

  // The same, but waits `timeout` at most. Returns the jobs whose workdirs are being made still.
  std::vector<std::string> Stop(absl::Duration timeout);

  // Makes the folder in which the assignment's worker starts, if it is not there, and calls `done`
  // on a thread of this class: of one job in the order of the calls, of several jobs at the same
  // time. Does not block. `done`'s errors: Unavailable (the coordinator does not give the package),
  // DataLoss, FailedPrecondition (another than the job's user made the folder), those of writing.
  void Prepare(const WorkerAssignment& assignment, std::function<void(const absl::Status&)> done);

 private:
  struct Wish {
    WorkerAssignment assignment;
    std::function<void(const absl::Status&)> done;
    int64_t number = 0;      // in the order of the calls
    bool transfers = false;  // its package is not kept
    bool has_place = false;  // among kMostTransfers
  };
  void Loop();
  std::optional<Wish> NextWish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where it was among those that wait.
  void PutBack(Wish wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the wish's folder. Nothing: it was put back, since its package has to be transferred.
  std::optional<absl::Status> Make(Wish& wish);
  // As `account`, where there is one.
  absl::Status Unpack(const WorkerAssignment& assignment, const std::optional<Account>& account,
                      const std::string& bytes);
  // The package, from the coordinator if the wish has a place for that. NotFound: it has none.
  absl::StatusOr<std::string> Take(Wish& wish);
  // Others may have the wish's place for a transfer, and its package.
  void GiveBack(Wish& wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::string> Transfer(const std::string& id);

  const Settings settings_;
  coordinator::PackageStore kept_;
  absl::Mutex mu_;
  CondVar changed_;
  std::deque<Wish> wishes_ ABSL_GUARDED_BY(mu_);  // by number
  int64_t last_wish_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string> busy_jobs_ ABSL_GUARDED_BY(mu_);
  // The packages that are being had, and the job for which; another that wants one finds it kept.
  std::map<std::string, std::string> taking_ ABSL_GUARDED_BY(mu_);
  int transfers_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Thread> threads_;  // last: they use the rest
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_WORKDIRS_H_
