// SPDX-License-Identifier: Apache-2.0
// Whether a coordinator that stands by could take the leader's place: those whom the leader serves
// must be able to show it what they show the leader. With another state directory (`init` was run
// on each host, or rotated what one of them has) it would lock all of them out.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_LEADER_CHECK_H_
#define LOCKSTEP_COORDINATOR_LEADER_CHECK_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/thread.h"

namespace lockstep::coordinator {

class LeaderCheck {
 public:
  // Shows each leader the tokens of `token_file`, the newest first, until it answers, and warns
  // when it takes none of them, nor a few seconds later, or not the newest. Without a file it does
  // nothing.
  explicit LeaderCheck(std::string token_file);
  // Blocks for a call to the leader that is under way: seconds, and as long as its name is looked
  // up.
  ~LeaderCheck();

  // This one leads; empty: nobody that is to be looked at.
  void SetLeader(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what it says of the tokens.
  absl::Status Look(const std::string& leader) const;
  // Waits so long; returns whether it still leads, and this is not over.
  bool AwaitAnother(const std::string& leader, absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string token_file_;
  absl::Mutex mu_;
  CondVar changed_;
  std::string leader_ ABSL_GUARDED_BY(mu_);  // that has not answered yet
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_LEADER_CHECK_H_
