// SPDX-License-Identifier: Apache-2.0
// Small files that are their owner's alone: tokens and keys.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_PRIVATE_FILE_H_
#define LOCKSTEP_COORDINATOR_CLIENT_PRIVATE_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::coordinator {

// Returns whether a file of this owner and mode is private to `reader`: nobody else can read or
// write it. One of root's may have a group that reads it, for readers that are not root: services
// and containers are given secrets so (systemd's credentials, whose access list shows as the
// group's bits; volumes).
bool IsPrivate(uid_t owner, mode_t mode, uid_t reader);

// The first 64 KiB of `file`, which may be a pipe; `what` names it in messages ("token file").
// Errors: NotFound; FailedPrecondition (permission; others can read it, it belongs to somebody
// else, or is no file).
absl::StatusOr<std::string> ReadPrivateFile(const std::string& file, absl::string_view what);

// Makes `file` with mode 0600 whatever the umask, whole or not at all. With `replace` an older file
// gives way; else it stays, and that is no error.
// Errors: as open(2), write(2).
absl::Status WritePrivateFile(const std::string& file, absl::string_view what,
                              absl::string_view text, bool replace);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_PRIVATE_FILE_H_
