// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/exit_codes.h"

#include <vector>

namespace lockstep::launcher {

absl::Span<const ExitCodeEntry> ExitCodeTable() {
  static const auto* const table = new std::vector<ExitCodeEntry>{
      {"0", "done"},
      {"1", "failed for a reason that no other code names"},
      {"2", "the command line is wrong"},
      {"3", "the job file is wrong or cannot be read"},
      {"4", "no coordinator answers"},
      {"5", "the job cannot fit or be admitted"},
      {"124", "the job ran for as long as its time_limit allows"},
      {"130", "stopped by Ctrl-C, SIGTERM, SIGHUP or 'launcher cancel'"},
      {"128+N", "the first failed rank was ended by signal N"},
      {"other", "the exit code of the first failed rank"},
  };
  return *table;
}

int ExitCodeOf(const absl::Status& status, Input input) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return input == Input::kJobFile ? kExitBadJobFile : kExitUsage;
    case absl::StatusCode::kUnavailable:
      return kExitNoCoordinator;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kOutOfRange:
      return kExitNotAdmitted;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailure;
  }
}

}  // namespace lockstep::launcher
