// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

namespace lockstep::launcher {

bool StopWishes::Take(const StopSignal& signal) {
  if (count_ > 0) {
    if (signal.number == SIGHUP) return false;
    const absl::Duration since = signal.read - last_.read;
    if (signal.sender != last_.sender && since < kForwarded) return false;
    const bool again = signal.sender == last_.sender && signal.number == last_.number;
    if (again && signal.sender != StopSignal::kTerminal && since < kSentTwice) return false;
  }
  last_ = signal;
  ++count_;
  return true;
}

}  // namespace lockstep::launcher
