// SPDX-License-Identifier: Apache-2.0
// Small files that are their owner's alone: tokens and keys.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_PRIVATE_FILE_H_
#define LOCKSTEP_COORDINATOR_CLIENT_PRIVATE_FILE_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

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
// gives way, behind links where the name is one, and leaves its group, and its mode where that is
// private; else it stays, and that is no error.
// Errors: as open(2), write(2).
absl::Status WritePrivateFile(const std::string& file, absl::string_view what,
                              absl::string_view text, bool replace);

// Several such files of one folder that replace older ones together: all are written and flushed
// beside their places before the first one is put there, so that a full disk changes none of them.
// Thread-safety: thread-compatible.
class PrivateFiles {
 public:
  PrivateFiles() = default;
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;
  ~PrivateFiles();  // leaves nothing of those that were not put in place

  // Writes the text beside `file`. Errors: as WritePrivateFile.
  absl::Status Add(const std::string& file, absl::string_view what, absl::string_view text);
  // Puts them in place, in the order in which they were added, and flushes the folder. Called once.
  // Errors: as rename(2), fsync(2); those before it are in place.
  absl::Status PutInPlace();

 private:
  std::vector<std::pair<std::string, std::string>> files_;  // as written, and where each belongs
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_PRIVATE_FILE_H_
