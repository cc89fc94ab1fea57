// SPDX-License-Identifier: Apache-2.0
// How often somebody has asked a program to stop, out of the signals that reach it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_WISHES_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_WISHES_H_

namespace lockstep::launcher {

class StopWishes {
 public:
  // Returns whether `signal` is a wish of its own; count() has it then. A terminal that goes away
  // is never a second wish: both the shell and the kernel tell of it (SIGHUP).
  bool Take(int signal);
  int count() const { return count_; }

 private:
  int count_ = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_WISHES_H_
