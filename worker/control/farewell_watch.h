// SPDX-License-Identifier: Apache-2.0
// Waits for the agent's word that the coordinator is gone for good (common/farewell.h).
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CONTROL_FAREWELL_WATCH_H_
#define LOCKSTEP_WORKER_CONTROL_FAREWELL_WATCH_H_

#include <functional>

#include "common/fd.h"
#include "common/thread.h"

namespace lockstep::worker {

class FarewellWatch {
 public:
  // Blocks the signal in the calling thread and those that it starts later, so that it waits for a
  // watch. Called in main, before any thread exists.
  static void Block();

  // `on_farewell` is called once, on the watch's thread, when the signal comes or has come.
  explicit FarewellWatch(std::function<void()> on_farewell);
  // No call is under way or comes after it.
  ~FarewellWatch();

 private:
  void Run(const std::function<void()>& on_farewell);

  UniqueFd signal_, stop_;
  Thread thread_;  // last: uses the rest
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_FAREWELL_WATCH_H_
