// SPDX-License-Identifier: Apache-2.0
#include "common/signal_name.h"

#include <string.h>

#include "absl/strings/str_cat.h"

namespace lockstep {

std::string SignalName(int signal) {
  // The C library only has them without their numbers' aliases.
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

}  // namespace lockstep
