// SPDX-License-Identifier: Apache-2.0
// How an agent that has lost its coordinator for good tells its workers, and what they answer.
// There is nobody else left whom a worker could hear. Thread-safety: constants.
#ifndef LOCKSTEP_COMMON_FAREWELL_H_
#define LOCKSTEP_COMMON_FAREWELL_H_

#include <csignal>

namespace lockstep {

// To a worker: finish the step that you can, save the state and leave.
inline constexpr int kFarewellSignal = SIGUSR1;
// The worker's exit code when the newest state that it has is in a whole checkpoint. Any other one:
// it is not.
inline constexpr int kFarewellSaved = 0;
inline constexpr int kFarewellNotSaved = 1;

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_FAREWELL_H_
