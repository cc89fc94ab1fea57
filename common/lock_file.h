// SPDX-License-Identifier: Apache-2.0
// Files that several processes share: read as they are, and changed by one of them at a time.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_LOCK_FILE_H_
#define LOCKSTEP_COMMON_LOCK_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"

namespace lockstep {

// The file's text; empty when it cannot be read.
std::string ReadText(const std::string& path);

// Holds the lock `path` for as long as the result lives. The file is made, with its folders, and
// stays; nobody but its owner may open it, and so hold others up. Blocks for up to `limit`. Errors:
// Unavailable (it cannot be opened), DeadlineExceeded (another process holds it).
absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration limit);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LOCK_FILE_H_
