// SPDX-License-Identifier: Apache-2.0
// Files that several processes share: read as they are, and changed by one of them at a time.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_LOCK_FILE_H_
#define LOCKSTEP_COMMON_LOCK_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"

namespace lockstep {

// The file's text; empty when it cannot be read.
std::string ReadText(const std::string& path);

// Holds the lock `path` for as long as the result lives. The file is made, with its folders, and
// stays; nobody but its owner may open it, and so hold others up. Blocks for up to `limit`. Errors:
// Unavailable (it cannot be opened, or its file system has no locks), DeadlineExceeded (another
// process holds it).
absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration limit);

// Returns what is said of a flock(2) that failed, but not because somebody else holds `path`:
// Unavailable, with the path, the error and what the file system must have.
absl::Status LockError(const std::string& path, int error_number);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LOCK_FILE_H_
