// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

namespace lockstep::launcher {

bool StopWishes::Take(const StopSignal& signal) {
  if (count_ > 0) {
    if (signal.number == SIGHUP) return false;
    if (signal.sender != last_.sender && signal.read - last_.read < kForwarded) return false;
  }
  last_ = signal;
  ++count_;
  return true;
}

}  // namespace lockstep::launcher
