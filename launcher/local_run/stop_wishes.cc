// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/stop_wishes.h"

#include <signal.h>

namespace lockstep::launcher {

bool StopWishes::Take(int signal) {
  if (count_ > 0 && signal == SIGHUP) return false;
  ++count_;
  return true;
}

}  // namespace lockstep::launcher
