// SPDX-License-Identifier: Apache-2.0
// Carries out the changes of a run's size that `launcher chaos --scale` asks for: a worker that
// comes to the step says so on a pipe (common/chaos.h), and a thread of this asks the coordinator,
// as `launcher scale` does. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_SCALE_FAULTS_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_SCALE_FAULTS_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/chaos.h"
#include "common/fd.h"
#include "common/thread.h"
#include "coordinator/client/client.h"

namespace lockstep::launcher {

class ScaleFaults {
 public:
  // Makes the pipe at `path`, which the caller removes. `on_refused` is called on its thread with
  // what the coordinator says to a change that cannot be. Errors: whatever the system says.
  static absl::StatusOr<std::unique_ptr<ScaleFaults>> Create(
      const std::string& path, std::function<void(const std::string&)> on_refused);
  // Waits for a call that is under way.
  ~ScaleFaults() { Stop(); }

  // From here on the job is scaled as `faults`, in the order in which workers know them, say.
  void Start(std::shared_ptr<coordinator::Client> client, std::string job_id,
             std::vector<chaos::Injection> faults);
  // Scales no more. May be called again.
  void Stop();
  // Numbers of those that the coordinator has not carried out, though a worker came there.
  std::set<int> refused() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ScaleFaults(std::function<void(const std::string&)> on_refused)
      : on_refused_(std::move(on_refused)) {}
  void Run();
  // The lines that are there.
  void ReadLines(std::string* rest);
  // Asks until the coordinator has answered: it may be starting again.
  absl::Status Scale(int workers);
  bool Stopped(int timeout_ms) const;

  const std::function<void(const std::string&)> on_refused_;
  UniqueFd pipe_, stop_;
  std::shared_ptr<coordinator::Client> client_;
  std::string job_id_;
  std::vector<chaos::Injection> faults_;
  mutable absl::Mutex mu_;
  std::set<int> refused_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_SCALE_FAULTS_H_
