// SPDX-License-Identifier: Apache-2.0
// The end of a launcher that has the workers of a job itself: the text of the result, and the wait
// for a disk that keeps the last of their logs.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_END_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_END_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/chaos.h"
#include "coordinator/client/files.h"
#include "launcher/follow/renderer.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

struct RunRecord {
  bool json = false;
  bool profiled = false;                      // the run leaves a profile
  std::vector<chaos::Injection> faults = {};  // of `launcher chaos`
  std::set<int> refused = {};                 // of them did not happen
  bool disk_hangs = false;                    // nothing is read from the run's folder
  // What LogsIn said before the job: with the same, its logs are on other hosts.
  std::string logs_before = {};
};

// Returns the names, sizes and times of the logs in a run's folder; "": there are none. Blocks for
// its disk.
std::string LogsIn(const std::string& run_dir);

// The job's result for people or programs. Reads what the run's folder has of logs, profile and
// faults, and blocks for its disk, unless that hangs.
std::string ResultText(const JobStatus& status, const RunRecord& record);

struct BroughtModel {
  std::string said = {};     // of where it is; "": where the job says
  bool interrupted = false;  // it may be elsewhere alone
};
// FetchModel, with what is said of it; once `go_on` is false, the owner of `files` stops them.
// Blocks until the model is here, or cannot be had.
BroughtModel BringModel(coordinator::FilesClient* files, const JobStatus& ended,
                        const std::string& run_dir, const std::function<bool()>& go_on);

// What AgentOptions::on_hung_disk does.
class HungDisk {
 public:
  // `renderer` must outlive it.
  explicit HungDisk(Renderer* renderer) : renderer_(renderer) {}
  // Says that `what` does not come back, or, where nobody `waits` any more, that the launcher ends.
  // Returns whether it waits, after a moment.
  bool Wait(const std::string& what, bool waits);
  // Returns how long it has waited.
  absl::Duration waited() const;

 private:
  Renderer* const renderer_;
  absl::Time since_ = absl::InfiniteFuture();
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_RUN_END_H_
