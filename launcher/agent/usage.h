// SPDX-License-Identifier: Apache-2.0
// What a node's GPUs and workers use, looked at once a second on a thread of its own: the driver
// may be slow to answer, and nothing waits for it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_USAGE_H_
#define LOCKSTEP_LAUNCHER_AGENT_USAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/nvml.h"
#include "common/thread.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// A process's use of memory and CPU so far, from /proc; zeros when it is gone.
struct ProcessTimes {
  int64_t rss_bytes = 0;
  double cpu_seconds = 0;
};
// Does not block.
ProcessTimes TimesOf(int64_t pid);

class UsageSampler {
 public:
  // Of the GPUs in `uuids` alone.
  explicit UsageSampler(std::vector<std::string> uuids);
  ~UsageSampler();

  // The worker processes by incarnation, from now on.
  void Watch(std::map<std::string, int64_t> pids);
  // The newest figures.
  AgentHeartbeat Latest() const;

  // Looks now; for tests and the thread. `nvml` may be null.
  void Sample(const Nvml* nvml, absl::Time now);

 private:
  void Run();
  std::vector<Nvml::Device> Watched(const Nvml& nvml) const;

  const std::vector<std::string> uuids_;
  mutable absl::Mutex mu_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, int64_t> pids_ ABSL_GUARDED_BY(mu_);
  AgentHeartbeat latest_ ABSL_GUARDED_BY(mu_);
  // CPU seconds of each worker at the last look, and when that was.
  std::map<std::string, std::pair<double, absl::Time>> before_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_USAGE_H_
