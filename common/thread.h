// SPDX-License-Identifier: Apache-2.0
// A named thread that its owner joins. There are no detached threads in the program.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COMMON_THREAD_H_
#define LOCKSTEP_COMMON_THREAD_H_

#include <functional>
#include <string>
#include <thread>

namespace lockstep {

class Thread {
 public:
  Thread() = default;
  // Starts `body` on a new thread shown as `name` (at most 15 characters) by ps and gdb. Signals
  // are blocked in it, so that they reach the main thread; those of its own faults are not.
  Thread(const std::string& name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&&) = default;
  // Joins; the owner must have told the body to end.
  ~Thread() { Join(); }
  // Blocks until the body has returned; does nothing without a thread.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  bool running() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_THREAD_H_
