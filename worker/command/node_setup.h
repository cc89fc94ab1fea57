// SPDX-License-Identifier: Apache-2.0
// The job's `setup`: a shell command that each node runs once before the job's commands. Who runs
// it is decided by a lock in the run's folder; that it was done is a file beside it, so that
// restarts do not repeat it, and what begins while it runs waits. A host that was started anew, or
// another container with a first process of its own, has lost what it may have made, and runs it
// again. Thread-safety: lives on the
// process's main thread, as RankProcess does.
#ifndef LOCKSTEP_WORKER_COMMAND_NODE_SETUP_H_
#define LOCKSTEP_WORKER_COMMAND_NODE_SETUP_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/fd.h"
#include "worker/command/rank_process.h"

namespace lockstep::worker {

class NodeSetup {
 public:
  // `run_dir` may be seen by several nodes.
  NodeSetup(std::string run_dir, const std::string& node_id, std::string command);

  // Does what can be done now, with `process` as the command's; never blocks on it. Returns whether
  // the node is set up. Errors: FailedPrecondition when the command failed; Unavailable when a
  // signal ended it; those of the files; FailedPrecondition where the file system has no locks,
  // Unavailable where it gives none. Says once, in the log, whom it waits for.
  absl::StatusOr<bool> Advance(RankProcess* process);

 private:
  void SayWhoHasIt();

  const std::string lock_path_;
  const std::string done_path_;
  const std::string command_;
  UniqueFd lock_;
  bool mine_ = false;
  bool told_ = false;  // whom it waits for
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_NODE_SETUP_H_
