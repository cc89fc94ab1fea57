// SPDX-License-Identifier: Apache-2.0
// A thread that does one task after another at low priority, so that it takes what time the others
// leave.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_CHECKPOINT_TASK_THREAD_H_
#define LOCKSTEP_CHECKPOINT_TASK_THREAD_H_

#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/thread.h"

namespace lockstep::checkpoint {

class TaskThread {
 public:
  // Starts the thread. `first`, which may be empty, is done before its priority is lowered; it does
  // not count as a task.
  TaskThread(const std::string& name, std::function<void()> first);
  // Does what was posted, and joins.
  ~TaskThread();

  // Does not block. Tasks are done in the order of their posting.
  void Post(std::function<void()> task);
  // Blocks until nothing is posted or being done, or `timeout` is over. Returns whether it is so.
  bool WaitIdle(absl::Duration timeout) const;

 private:
  void Loop(const std::function<void()>& first);

  mutable absl::Mutex mu_;
  mutable CondVar became_idle_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;  // last: uses the rest
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_TASK_THREAD_H_
