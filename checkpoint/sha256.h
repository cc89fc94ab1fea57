// SPDX-License-Identifier: Apache-2.0
// The SHA-256 of files.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_CHECKPOINT_SHA256_H_
#define LOCKSTEP_CHECKPOINT_SHA256_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage.h"
#include "common/sha256.h"

namespace lockstep::checkpoint {

using lockstep::Sha256;
using lockstep::Sha256Hex;

// A file's length and digest.
struct HashedFile {
  uint64_t bytes = 0;
  std::string sha256;  // hex
};
// Reads a whole file. `go_on`, which may be empty, is asked between pieces of 256 KiB; false ends
// it with Cancelled. Blocks for the disk. Errors: those of Storage::Open and Source::ReadAt.
absl::StatusOr<HashedFile> HashFile(Storage* storage, const std::string& path,
                                    const std::function<bool()>& go_on);

// What a file is beside the one that is wanted.
enum class FileMatch {
  kSame,
  kOther,    // or it is not there
  kUnknown,  // it could not be read, which says nothing of what it holds
};
// Compares the file at `path` with the one that has that sha256. `go_on` as in HashFile; false:
// kUnknown. Blocks for the disk.
FileMatch MatchFile(Storage* storage, const std::string& path, const std::string& sha256,
                    const std::function<bool()>& go_on);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_SHA256_H_
