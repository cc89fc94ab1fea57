// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all. A file is written beside its target (without a name until
// it is whole, where the file system allows it), flushed to the disk, renamed over the target, and
// the folder is flushed. Until Commit an older file at the path stays as it is. One that has a name
// is held by flock(2): what a killed process leaves under such a name is nobody's, and whoever
// writes the same target next removes it. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COMMON_DURABLE_FILE_H_
#define LOCKSTEP_COMMON_DURABLE_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "common/write_behind.h"

namespace lockstep {

// What names of files begin with that are written beside their targets.
inline constexpr const char* kTemporaryPrefix = ".saving-";

class DurableFile {
 public:
  // Starts a file that Commit will put at `path`; missing folders are made. The mode is 0666 less
  // the umask. Errors: FailedPrecondition (permission, or a part of the path is not a folder),
  // ResourceExhausted (disk full).
  static absl::StatusOr<DurableFile> Create(const std::string& path);
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  // Without Commit nothing is left behind.
  ~DurableFile();

  // Appends. Blocks as the disk does. Errors: ResourceExhausted (disk or file size limit).
  absl::Status Append(const void* data, size_t bytes);
  absl::Status Append(std::string_view text) { return Append(text.data(), text.size()); }

  // Makes the file durable and visible at its path. Called at most once; blocks for the disk.
  // Errors: ResourceExhausted, FailedPrecondition; the older file stays.
  absl::Status Commit();

 private:
  DurableFile(std::string path, std::string folder, std::string temporary, UniqueFd fd);
  absl::Status NameIt();

  std::string path_;
  std::string folder_;
  std::string temporary_;  // empty while the file has no name
  UniqueFd fd_;
  WriteBehind behind_;
};

// Makes the folder `path` and those above it; existing ones are fine. New ones are durable on
// return. Errors: FailedPrecondition (permission, or something else has the name),
// ResourceExhausted.
absl::Status CreateFolders(const std::string& path);

// Writes `contents` to `path` in one go, as DurableFile does.
absl::Status WriteFileDurably(const std::string& path, std::string_view contents);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_DURABLE_FILE_H_
