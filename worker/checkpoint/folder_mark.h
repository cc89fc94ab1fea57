// SPDX-License-Identifier: Apache-2.0
// Says that a run saves its checkpoints in a folder, so that another one that begins is told. It
// keeps nobody out: where it fails, or a host that died still counts as one that holds its file,
// nothing but what is said depends on it.
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_FOLDER_MARK_H_
#define LOCKSTEP_WORKER_CHECKPOINT_FOLDER_MARK_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage.h"

namespace lockstep::worker {

class FolderMark {
 public:
  // Makes `folder`, which may be there, and leaves the file ".run-ID" of `run` in it, held until
  // the mark is destroyed or the process ends. Null: a worker of the run holds it already, or the
  // file system has no locks. Blocks for the disk. Errors: those of the storage.
  static absl::StatusOr<std::unique_ptr<FolderMark>> Leave(checkpoint::Storage* storage,
                                                           const std::string& folder,
                                                           const std::string& run);
  // Removes the file.
  ~FolderMark();

  // Returns the ids of other runs that hold theirs, and removes the files of those that do not. Of
  // two that begin together at least one sees the other, which holds for whoever asks as it begins
  // alone: one that is just leaving its own may find it removed. Blocks for the disk.
  std::vector<std::string> Others() const;
  // Returns whether there are files of other runs, held or not (those of the dead were removed
  // when this one began), or the folder cannot be read. Blocks for the disk.
  bool SeesOthers() const;

 private:
  FolderMark(checkpoint::Storage* storage, std::string folder, std::string name)
      : storage_(storage), folder_(std::move(folder)), name_(std::move(name)) {}

  checkpoint::Storage* const storage_;
  const std::string folder_;
  const std::string name_;
  std::unique_ptr<checkpoint::Storage::Hold> hold_;
};

// Returns whether a process of `run` holds its mark in the folder. Blocks for the disk.
bool HoldsFolder(checkpoint::Storage* storage, const std::string& folder, const std::string& run);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_FOLDER_MARK_H_
