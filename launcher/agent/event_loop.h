// SPDX-License-Identifier: Apache-2.0
// A thread that runs posted functions, calls back for readable descriptors and keeps one timer.
// Thread-safety: Post is thread-safe; the rest belongs to the loop's thread, or to the owner before
// Start.
#ifndef LOCKSTEP_LAUNCHER_AGENT_EVENT_LOOP_H_
#define LOCKSTEP_LAUNCHER_AGENT_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/thread.h"

namespace lockstep::launcher {

class EventLoop {
 public:
  // Errors: as of epoll_create(2).
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create();
  // Stops and joins.
  ~EventLoop();

  // Starts the thread. `after_events` runs after each batch of events and returns when, on
  // Clock::Real(), it wants to run again without one.
  void Start(const std::string& name, std::function<absl::Time()> after_events);
  // Ends the thread after the functions posted so far; later ones are dropped.
  void Stop();
  // Runs `function` on the thread.
  void Post(std::function<void()> function);
  // Calls `on_readable` whenever `fd` can be read or has ended, until Forget. Errors: as of
  // epoll_ctl(2).
  absl::Status Watch(int fd, std::function<void()> on_readable);
  // Called before `fd` is closed.
  void Forget(int fd);

 private:
  EventLoop() = default;
  void Run(const std::function<absl::Time()>& after_events);
  // Runs what was posted; returns false when the loop shall end.
  bool RunPosted();

  UniqueFd epoll_, wake_;
  std::unordered_map<int, std::shared_ptr<std::function<void()>>> watched_;
  absl::Mutex mu_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_EVENT_LOOP_H_
