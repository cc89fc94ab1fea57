// SPDX-License-Identifier: Apache-2.0
// Puts pieces of a run's files (proto/files.proto) together in a folder. A file appears under its
// name when it is whole and its digests are right; what a node says of names is not taken on trust.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_VERBS_FILE_RECEIVER_H_
#define LOCKSTEP_LAUNCHER_VERBS_FILE_RECEIVER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/fd.h"
#include "proto/files.pb.h"

namespace lockstep::launcher {

class FileReceiver {
 public:
  explicit FileReceiver(std::string folder) : folder_(std::move(folder)) {}
  // Removes what of a file has come.
  ~FileReceiver();

  // Takes the next piece. Blocks for the disk. Errors: InvalidArgument for a name outside the
  // folder; DataLoss when pieces are missing or damaged; those of writing, naming the file.
  absl::Status Take(const FilePiece& piece);
  // The stream ended. Errors: DataLoss when a file is not whole.
  absl::Status Finish();

  const std::vector<std::string>& names() const { return names_; }

 private:
  absl::Status Begin(const FilePiece& piece);
  void Drop();
  // Where it is until it is whole.
  std::string part() const;

  const std::string folder_;
  std::vector<std::string> names_;  // of whole files
  std::string name_;                // of the one that comes; empty: none
  int64_t size_ = 0;
  int64_t got_ = 0;
  std::string digest_;
  UniqueFd file_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_FILE_RECEIVER_H_
