// SPDX-License-Identifier: Apache-2.0
// The children of a single-threaded process that starts, signals and reaps processes for others,
// each by the id that it was asked for under.
// Thread-safety: for one thread.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_CHILD_TABLE_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_CHILD_TABLE_H_

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "common/fd.h"
#include "launcher/spawner/wire.h"

namespace lockstep::launcher {

// Makes this process one that is fit for a ChildTable: subreaper, called `name`, with as many open
// files as can be, all signals blocked. Returns a signalfd (non-blocking) of SIGCHLD and `other`;
// invalid when there is none.
UniqueFd BecomeParent(const char* name, int other);

class ChildTable {
 public:
  // As StartChild; returns kStarted or kFailed.
  SpawnerEvent Start(const SpawnerCommand& command, std::vector<UniqueFd> fds, int program = -1);
  // Signals the process group of `id`, if it runs.
  void Signal(uint64_t id, int signal);
  // Reaps whoever has ended, after what they left behind was killed. Returns kExited of those that
  // were asked for.
  std::vector<SpawnerEvent> Reap();
  // Kills all that descends from here. Blocks until none is left, or `timeout`.
  void KillAll(absl::Duration timeout);
  bool empty() const { return ids_.empty(); }

 private:
  // Kills what was adopted here: it came of a process that has ended.
  void KillAdopted();

  std::unordered_map<pid_t, uint64_t> ids_;  // of the running children that were asked for
  std::unordered_map<uint64_t, pid_t> pids_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_CHILD_TABLE_H_
