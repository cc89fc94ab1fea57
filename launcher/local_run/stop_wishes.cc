// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

#include <utility>

namespace lockstep::launcher {

bool StopWishes::Take(const StopSignal& signal) {
  if (count_ > 0) {
    if (signal.number == SIGHUP) return false;
    const absl::Duration since = signal.read - last_.read;
    if (signal.sender == StopSignal::kTerminal) {
      if (!std::exchange(of_terminal_, true) && since < kForwarded) return false;
    } else if (signal.sender != last_.sender) {
      if (since < kForwarded) return false;
    } else if (signal.number == last_.number && since < kSentTwice) {
      return false;
    }
  }
  last_ = signal;
  of_terminal_ = signal.sender == StopSignal::kTerminal;
  ++count_;
  return true;
}

}  // namespace lockstep::launcher
