// SPDX-License-Identifier: Apache-2.0
// The launcher's version. Thread-safety: constants.
#ifndef LOCKSTEP_LAUNCHER_CLI_VERSION_H_
#define LOCKSTEP_LAUNCHER_CLI_VERSION_H_

namespace lockstep::launcher {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_VERSION_H_
