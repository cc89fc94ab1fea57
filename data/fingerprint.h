// SPDX-License-Identifier: Apache-2.0
// What tells whether two hosts have the same data at the same paths: size and hash of each file of
// a source. Small files are hashed whole, large ones in pieces that are spread over them.
// Thread-safety: pure functions of the files.
#ifndef LOCKSTEP_DATA_FINGERPRINT_H_
#define LOCKSTEP_DATA_FINGERPRINT_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

struct FileFingerprint {
  std::string path;
  // Of a folder: the number of its files, and the hash of their names.
  uint64_t bytes = 0;
  uint64_t hash = 0;
  bool folder = false;
};

// Files up to this are hashed whole.
inline constexpr uint64_t kWholeBytes = uint64_t{256} << 20;

// Size and hash of one file. Blocks for the disk: at most `whole_bytes` are read. Errors: those of
// MappedBytes, naming the file.
absl::StatusOr<FileFingerprint> FingerprintFile(const std::string& path,
                                                uint64_t whole_bytes = kWholeBytes);

// What of a source is looked at.
struct FingerprintOptions {
  bool test = true;  // what the training split does not need, too
  // Of a folder at most so many are read, but 64 KiB of each of its files in any case.
  uint64_t folder_bytes = std::numeric_limits<uint64_t>::max();
  // Called before each file; false ends it with Cancelled. May be empty.
  std::function<bool()> go_on = {};
};

// Of the files of `source` that are there; none for made data. A folder with many files counts as
// one file that holds them all. Errors: as FingerprintFile; Cancelled.
absl::StatusOr<std::vector<FileFingerprint>> FingerprintFiles(
    const Source& source, const FingerprintOptions& options = {});

// Returns a number that is another one when a file of `source` (with `test` those that the training
// split does not need, too) was replaced or written to since, and also when it was only touched: by
// what the file system says of it. Equal only on one host. Reads no file.
uint64_t StampFiles(const Source& source, bool test);

// Returns whether `path` is a file of `source`, of either split, by whatever name. Blocks for the
// file system.
bool IsFileOf(const Source& source, const std::string& path);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_FINGERPRINT_H_
