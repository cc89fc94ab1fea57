// SPDX-License-Identifier: Apache-2.0
// The coordinator that a verb speaks to.
// Thread-safety: pure but for the token's file.
#ifndef LOCKSTEP_LAUNCHER_VERBS_CONNECT_H_
#define LOCKSTEP_LAUNCHER_VERBS_CONNECT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/exit_codes.h"

namespace lockstep::launcher {

// How long a verb waits for a reply.
inline constexpr absl::Duration kReplyTimeout = absl::Seconds(5);
// How long a follower goes on reconnecting.
inline constexpr absl::Duration kReconnectFor = absl::Seconds(60);

// Address and token: those named, else this user's own coordinator and its token. Errors:
// FailedPrecondition and NotFound, when the token is none, its file cannot be read, or others can
// read it.
absl::StatusOr<coordinator::ClientOptions> ClientOptionsOf(const CoordinatorArgs& args);

// A client of that coordinator. Errors: as ClientOptionsOf.
absl::StatusOr<std::unique_ptr<coordinator::Client>> Connect(const CoordinatorArgs& args);

// Returns why a job that goes on is followed no more, where the coordinator said `why`.
absl::Status WithoutFollower(const absl::Status& why);

// Prints "error: ..." on stderr, or a job file's diagnostics as they are, safe for a terminal, and
// returns the exit code for `status` (ExitCodeOf).
int Complain(const absl::Status& status, Input input = Input::kCommandLine);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_CONNECT_H_
