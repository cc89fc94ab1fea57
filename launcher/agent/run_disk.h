// SPDX-License-Identifier: Apache-2.0
// What an agent does in the folder of one job's runs, on a thread of its own and in order: a disk
// that does not answer, such as a network's, holds that job up and neither the agent nor others.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_RUN_DISK_H_
#define LOCKSTEP_LAUNCHER_AGENT_RUN_DISK_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"

namespace lockstep::launcher {

class RunDisk {
 public:
  // Bytes that may wait for the disk before who brings more is to wait.
  static constexpr size_t kRoom = size_t{4} << 20;

  // One that is at one task for longer does not answer.
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  explicit RunDisk(Clock* clock = Clock::Real());
  // Blocks until everything is done.
  ~RunDisk();

  // Has `task` called, and destroyed, on the thread. `bytes`: what it is to write.
  void Do(std::function<void()> task, size_t bytes = 0);
  // Returns whether at most kRoom bytes wait.
  bool has_room() const;
  // Calls `on_room` on the thread when there is room, also where there is some already.
  void WhenRoom(std::function<void()> on_room);
  // Waits until everything is done, for `timeout` at most, and not at all while the disk is at one
  // task for longer than that already. Returns whether everything is done.
  bool Settle(absl::Duration timeout);
  // Returns whether it is at one task for longer than `patience`.
  bool stands(absl::Duration patience) const;
  // Returns whether everything is done, or it was at no task for longer than kPatience for as long.
  bool keeps_up() const;

 private:
  struct Task {
    std::function<void()> call;
    size_t bytes;
  };
  void Run();
  bool Done() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tasks_.empty() && !busy_; }

  Clock* const clock_;
  mutable absl::Mutex mu_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> on_room_ ABSL_GUARDED_BY(mu_);
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // bytes, with those of the task under way
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time busy_since_ ABSL_GUARDED_BY(mu_);
  absl::Time stood_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // at the newest such task
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_RUN_DISK_H_
