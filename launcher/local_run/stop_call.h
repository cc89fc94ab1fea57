// SPDX-License-Identifier: Apache-2.0
// The first wish to stop a run: asks its coordinator to have the workers save and leave.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_CALL_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_CALL_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"

namespace lockstep::launcher {

class StopCall {
 public:
  // Of the coordinator that is asked. Called before Ask.
  void Reach(const coordinator::ClientOptions& coordinator);
  // Asks for the end of `job_id`, and does not wait for it. Blocks until the coordinator has
  // answered, or the next one that takes its place; for `patience` at most. OK also when the job
  // has ended. Errors: Cancelled (GiveUp), Unavailable, DeadlineExceeded, those of CancelJob.
  absl::Status Ask(const std::string& job_id, absl::Duration patience);
  // Ends an Ask that is under way or comes later. Does not block.
  void GiveUp();

 private:
  absl::Mutex mu_;
  std::shared_ptr<coordinator::Client> client_ ABSL_GUARDED_BY(mu_);
  bool given_up_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_CALL_H_
