// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as calls on a thread, so that a handler may do anything.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_SIGNALS_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_SIGNALS_H_

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "common/thread.h"

namespace lockstep::launcher {

class StopSignals {
 public:
  // Blocks the signals in the calling thread and those that it starts later. Called in main before
  // the spawner is forked, whose children get their own masks, and before any thread exists. Also
  // makes SIGPIPE and SIGXFSZ harmless.
  static void Block();

  // `on_signal` is called with 1 for the first wish to stop, 2 for the second and so on, one at a
  // time. Signals that belong to the same wish (StopWishes) are one call.
  explicit StopSignals(std::function<void(int count)> on_signal);
  // The same, with which signal it was. `on_again` is called at once, on another thread, for each
  // wish but the first, also while on_signal is under way: it must not block.
  explicit StopSignals(std::function<void(int count, int signal)> on_signal,
                       std::function<void()> on_again = nullptr);
  // No call is under way or comes after it.
  ~StopSignals();

 private:
  struct Wish {
    int count;
    int signal;
  };
  // Reads signals as they come, so that when they did is known, however long a call takes.
  void Read(const std::function<void()>& on_again);
  void Call(const std::function<void(int, int)>& on_signal);

  UniqueFd signals_, stop_;
  absl::Mutex mu_;
  CondVar changed_;
  std::deque<Wish> wishes_ ABSL_GUARDED_BY(mu_);  // nobody was called for yet
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  Thread reader_, caller_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_SIGNALS_H_
