// SPDX-License-Identifier: Apache-2.0
// How often somebody has asked a program to stop, out of the signals that reach it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_WISHES_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_WISHES_H_

#include <cstdint>

#include "absl/time/time.h"

namespace lockstep::launcher {

// A signal as it was read.
struct StopSignal {
  static constexpr int64_t kTerminal = -1;
  int number = 0;
  // Which process sent it; kTerminal: the kernel, at Ctrl-C; 0: one that cannot be seen from here.
  int64_t sender = 0;
  absl::Time read;  // of Clock::Real()
};

class StopWishes {
 public:
  // Within so long what others send belongs to the wish before: Ctrl-C comes from the terminal, and
  // again from the script, timeout(1) or container's init that runs this program and forwards it;
  // a service manager signals both, too.
  static constexpr absl::Duration kForwarded = absl::Seconds(1);
  // Within so long one process that sends the same signal again means one wish: timeout(1) signals
  // the program and then its process group, which the program is in, and may have no CPU between
  // the two. Who types Ctrl-C twice as fast is heard where the terminal is this program's; a
  // forwarder alone has to be told again.
  static constexpr absl::Duration kSentTwice = absl::Milliseconds(300);

  // Returns whether `signal` is a wish of its own; count() has it then. A terminal that sends two
  // means two, also where a forwarder's come between, and any other sender that does so later. A
  // terminal that goes away is never a second wish: both the shell and the kernel tell of it
  // (SIGHUP).
  bool Take(const StopSignal& signal);
  int count() const { return count_; }

 private:
  int count_ = 0;
  StopSignal last_;           // that was a wish
  bool of_terminal_ = false;  // the terminal has sent a signal of that wish
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_STOP_WISHES_H_
