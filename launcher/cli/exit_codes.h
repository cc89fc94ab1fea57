// SPDX-License-Identifier: Apache-2.0
// The launcher's exit codes: documented in docs/exit_codes.md, stable for scripts.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_CLI_EXIT_CODES_H_
#define LOCKSTEP_LAUNCHER_CLI_EXIT_CODES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace lockstep::launcher {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // a failure that no other code names
inline constexpr int kExitUsage = 2;          // the command line is wrong
inline constexpr int kExitBadJobFile = 3;     // the job file is wrong or cannot be read
inline constexpr int kExitNoCoordinator = 4;  // no coordinator answers
inline constexpr int kExitNotAdmitted = 5;    // the job cannot fit or be admitted
inline constexpr int kExitInterrupted = 130;  // Ctrl-C
inline constexpr int kExitSignalBase = 128;   // + the signal that ended this process

struct ExitCodeEntry {
  std::string code;  // "3" or "128+N"
  std::string meaning;
};
// The table, in order; --help and docs/exit_codes.md show it.
absl::Span<const ExitCodeEntry> ExitCodeTable();

// What is wrong where an argument is said to be invalid (InvalidArgument).
enum class Input { kCommandLine, kJobFile };

// The code for a failure of the launcher itself (a job's own comes with its result): Unavailable is
// kExitNoCoordinator; FailedPrecondition, PermissionDenied, Unauthenticated, ResourceExhausted and
// OutOfRange kExitNotAdmitted; InvalidArgument kExitUsage of a verb without a job file,
// kExitBadJobFile of one with it; Cancelled kExitInterrupted; any other error kExitFailure.
int ExitCodeOf(const absl::Status& status, Input input);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_EXIT_CODES_H_
