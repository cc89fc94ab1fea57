// SPDX-License-Identifier: Apache-2.0
// The file of a token: its first line, read by nobody but its owner.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_
#define LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::coordinator {

// The token in `file`, which may be a pipe. Errors: NotFound; FailedPrecondition (permission; a
// file that others can read, or that belongs to somebody else; no token in it).
absl::StatusOr<std::string> ReadToken(const std::string& file);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_
