// SPDX-License-Identifier: Apache-2.0
// The few file operations that checkpoints are made of, behind an interface so that tests can make
// each of them fail and see their order. Errors name the path and have the codes of ErrnoStatus:
// ResourceExhausted for a full disk, FailedPrecondition for permission, NotFound, Unavailable for a
// disk or a server that fails.
//
// Thread-safety: a Storage is thread-safe; a File and a Hold are thread-compatible; a Source may be
// read by several threads.
#ifndef LOCKSTEP_CHECKPOINT_STORAGE_H_
#define LOCKSTEP_CHECKPOINT_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::checkpoint {

class Storage {
 public:
  // A file that is being written; closed by its destructor.
  class File {
   public:
    virtual ~File() = default;
    // Adds to the end of the file. Errors: ResourceExhausted (disk or file size limit).
    virtual absl::Status Append(const void* data, size_t bytes) = 0;
    // Blocks until what was appended is durable. A failure is final: it is not tried again, since
    // the kernel may have dropped the pages.
    virtual absl::Status Sync() = 0;
  };
  // A file that is being read; closed by its destructor.
  class Source {
   public:
    virtual ~Source() = default;
    // Its bytes when it was opened.
    virtual uint64_t size() const = 0;
    // Reads `bytes` bytes from `offset` on. Blocks for the disk. Errors: DataLoss when the file
    // ends before that or was truncated meanwhile; Unavailable when the disk fails.
    virtual absl::Status ReadAt(uint64_t offset, void* to, size_t bytes) = 0;
  };
  // Says that a folder or a file is in use, until it is destroyed or the process ends.
  class Hold {
   public:
    virtual ~Hold() = default;
  };

  virtual ~Storage() = default;

  // Makes a file, or empties the one that is there.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  // Makes an empty file; one that is there is fine and stays as it is. Unlike Create it holds
  // nothing for even a moment.
  virtual absl::Status MakeFile(const std::string& path) = 0;
  // Makes a folder and those above it, durably; existing ones are fine.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Blocks until the folder's entries are durable.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Gives a folder that name. When there is a folder of that name already, the two change their
  // names at once.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Opens a regular file for reading. Errors: also FailedPrecondition when it is none.
  virtual absl::StatusOr<std::unique_ptr<Source>> Open(const std::string& path) = 0;
  // The file's content. Errors: also DataLoss when it is longer than `limit`; NotFound when what it
  // lies in is no folder.
  virtual absl::StatusOr<std::string> Read(const std::string& path, uint64_t limit) = 0;
  // The names in a folder, sorted. A folder that is not there has none.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // Where the file system is mounted that `path` lies on, or would lie on: a folder above it need
  // not be there. Errors: Unavailable when a link on the way leads nowhere.
  virtual absl::StatusOr<std::string> MountPoint(const std::string& path) = 0;
  // Removes a file, or a folder with all that is in it; links are not followed. What is not there
  // is fine. Errors: also FailedPrecondition for folders more than 32 deep.
  virtual absl::Status Remove(const std::string& path) = 0;
  // A second name for a file, which replaces what had it. Where the file system has no links, or
  // it is another one, a copy: `go_on`, which may be empty, is asked between pieces of 256 KiB;
  // false ends it with Cancelled. What a copy that fails had written is removed. Blocks for the
  // disk.
  virtual absl::Status Link(const std::string& from, const std::string& to,
                            const std::function<bool()>& go_on) = 0;
  // A symbolic link to `target`, which replaces what had its name.
  virtual absl::Status Point(const std::string& link, const std::string& target) = 0;
  // Removes what Point made at `link`, if `is_own` takes its target for such. All else stays, and
  // nothing there is fine.
  virtual absl::Status Unpoint(const std::string& link,
                               const std::function<bool(const std::string& target)>& is_own) = 0;
  // Any number of shared holds, or one exclusive. Null: somebody else holds what is at `path`. Does
  // not block. Over NFS a folder's holds are those of its host alone, or cannot be exclusive.
  // Errors: NotFound also when somebody removed or replaced it meanwhile; Unimplemented where what
  // is at `path` cannot be held alone, so that nobody knows who else holds it.
  virtual absl::StatusOr<std::unique_ptr<Hold>> TakeHold(const std::string& path,
                                                         bool exclusive) = 0;

  // The machine's file systems; lives for the whole program.
  static Storage* Disk();
};

// Makes `path` with `contents`, and blocks until they are durable (the folder's entry is not).
absl::Status WriteWhole(Storage* storage, const std::string& path, std::string_view contents);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_STORAGE_H_
