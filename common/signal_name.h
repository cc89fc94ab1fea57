// SPDX-License-Identifier: Apache-2.0
// Signals by the names of signal(7).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_SIGNAL_NAME_H_
#define LOCKSTEP_COMMON_SIGNAL_NAME_H_

#include <string>

namespace lockstep {

// Returns "SIGKILL"; "signal 77" for one without a name.
std::string SignalName(int signal);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_SIGNAL_NAME_H_
