// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), by OpenSSL.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_CHECKPOINT_SHA256_H_
#define LOCKSTEP_CHECKPOINT_SHA256_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage.h"

namespace lockstep::checkpoint {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  // The digest goes on over `bytes` bytes at `data`, which are only read. REQUIRES: no FinishHex
  // before.
  void Update(const void* data, size_t bytes);
  // The digest of all that was given, 64 hex digits in lower case. Called once.
  std::string FinishHex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of `data`, 64 hex digits in lower case.
std::string Sha256Hex(std::string_view data);

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
