// SPDX-License-Identifier: Apache-2.0
// The disk, with a list of what was done to it, that can be told to fail from some operation on, as
// a full disk does, or to stand for a process that dies there: nothing reaches the disk any more.
// Reads are not in the list; they can be told to fail, or to be preceded by something.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_TESTS_UNIT_CHECKPOINT_RECORDING_STORAGE_H_
#define LOCKSTEP_TESTS_UNIT_CHECKPOINT_RECORDING_STORAGE_H_

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/storage.h"

namespace lockstep::checkpoint {

class RecordingStorage : public Storage {
 public:
  // Operation number `at` (0-based) and, with `all`, those after it fail.
  void FailAt(int at, bool all) {
    absl::MutexLock lock(&mu_);
    fail_at_ = at;
    all_ = all;
    count_ = 0;
  }
  // Operations whose line in the list contains `part` fail.
  void FailOn(const std::string& part) {
    absl::MutexLock lock(&mu_);
    fail_on_ = part;
  }
  // Sets what is asked before a file, whose path is given, is opened, read or listed; an error
  // takes the place of the read. Empty: nothing is.
  void BeforeReads(std::function<absl::Status(const std::string& path)> before) {
    absl::MutexLock lock(&mu_);
    before_reads_ = std::move(before);
  }
  // Sets what is called before a file, whose path is given, is made durable. Empty: nothing is.
  void BeforeSyncs(std::function<void(const std::string& path)> before) {
    absl::MutexLock lock(&mu_);
    before_syncs_ = std::move(before);
  }
  // Files whose path contains `part` read with a bit changed.
  void FlipReads(const std::string& part) {
    absl::MutexLock lock(&mu_);
    flipped_ = part;
  }
  // Every path lies on the file system mounted there. Empty: as it is.
  void SetMountPoint(const std::string& path) {
    absl::MutexLock lock(&mu_);
    mount_point_ = path;
  }
  // What keeps others from a folder that is held. Over NFS that is told within a host alone, or
  // where the kernel wants it open for writing not at all; a file's lock is everybody's.
  enum class FolderLocks { kEverybodys, kOwnHosts, kNone };
  void SetFolderLocks(FolderLocks locks) {
    absl::MutexLock lock(&mu_);
    folder_locks_ = locks;
  }
  std::vector<std::string> done() const {
    absl::MutexLock lock(&mu_);
    return done_;
  }
  int count() const {
    absl::MutexLock lock(&mu_);
    return count_;
  }

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    if (absl::Status s = Note("create", path); !s.ok()) return s;
    auto file = Disk()->Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<RecordedFile>(this, path, *std::move(file));
  }
  absl::Status MakeFile(const std::string& path) override {
    absl::Status s = Note("create", path);
    return s.ok() ? Disk()->MakeFile(path) : s;
  }
  absl::Status MakeFolder(const std::string& path) override {
    absl::Status s = Note("mkdir", path);
    return s.ok() ? Disk()->MakeFolder(path) : s;
  }
  absl::Status SyncFolder(const std::string& path) override {
    absl::Status s = Note("sync folder", path);
    return s.ok() ? Disk()->SyncFolder(path) : s;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    absl::Status s = Note("rename", to);
    return s.ok() ? Disk()->Rename(from, to) : s;
  }
  absl::StatusOr<std::string> Read(const std::string& path, uint64_t limit) override {
    if (absl::Status s = BeforeRead(path); !s.ok()) return s;
    return Disk()->Read(path, limit);
  }
  absl::StatusOr<std::unique_ptr<Source>> Open(const std::string& path) override {
    if (absl::Status s = BeforeRead(path); !s.ok()) return s;
    auto file = Disk()->Open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<ReadFile>(this, path, *std::move(file));
  }
  absl::StatusOr<std::string> MountPoint(const std::string& path) override {
    absl::MutexLock lock(&mu_);
    if (!mount_point_.empty()) return mount_point_;
    return Disk()->MountPoint(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    if (absl::Status s = BeforeRead(path); !s.ok()) return s;
    return Disk()->List(path);
  }
  absl::Status Remove(const std::string& path) override {
    absl::Status s = Note("remove", path);
    return s.ok() ? Disk()->Remove(path) : s;
  }
  absl::Status Unpoint(const std::string& link,
                       const std::function<bool(const std::string&)>& is_own) override {
    absl::Status s = Note("remove", link);
    return s.ok() ? Disk()->Unpoint(link, is_own) : s;
  }
  absl::Status Link(const std::string& from, const std::string& to,
                    const std::function<bool()>& go_on) override {
    absl::Status s = Note("link", to);
    return s.ok() ? Disk()->Link(from, to, go_on) : s;
  }
  absl::Status Point(const std::string& link, const std::string& target) override {
    absl::Status s = Note("point", link);
    return s.ok() ? Disk()->Point(link, target) : s;
  }
  absl::StatusOr<std::unique_ptr<Hold>> TakeHold(const std::string& path, bool exclusive) override {
    std::error_code error;
    absl::MutexLock lock(&mu_);
    if (exclusive && std::filesystem::is_directory(path, error)) {
      if (folder_locks_ == FolderLocks::kNone) return absl::UnimplementedError("no locks there");
      if (folder_locks_ == FolderLocks::kOwnHosts) return std::make_unique<Hold>();
    }
    return Disk()->TakeHold(path, exclusive);
  }

 private:
  class RecordedFile : public File {
   public:
    RecordedFile(RecordingStorage* storage, std::string path, std::unique_ptr<File> file)
        : storage_(storage), path_(std::move(path)), file_(std::move(file)) {}
    absl::Status Append(const void* data, size_t bytes) override {
      absl::Status s = storage_->Note("append", path_);
      return s.ok() ? file_->Append(data, bytes) : s;
    }
    absl::Status Sync() override {
      storage_->BeforeSync(path_);
      absl::Status s = storage_->Note("sync", path_);
      return s.ok() ? file_->Sync() : s;
    }

   private:
    RecordingStorage* const storage_;
    const std::string path_;
    const std::unique_ptr<File> file_;
  };

  class ReadFile : public Source {
   public:
    ReadFile(RecordingStorage* storage, std::string path, std::unique_ptr<Source> file)
        : storage_(storage), path_(std::move(path)), file_(std::move(file)) {}
    uint64_t size() const override { return file_->size(); }
    absl::Status ReadAt(uint64_t offset, void* to, size_t bytes) override {
      if (absl::Status s = storage_->BeforeRead(path_); !s.ok()) return s;
      absl::Status read = file_->ReadAt(offset, to, bytes);
      if (read.ok() && bytes > 0 && storage_->Flips(path_)) *static_cast<char*>(to) ^= 1;
      return read;
    }

   private:
    RecordingStorage* const storage_;
    const std::string path_;
    const std::unique_ptr<Source> file_;
  };

  absl::Status BeforeRead(const std::string& path) {
    std::function<absl::Status(const std::string&)> before;
    {
      absl::MutexLock lock(&mu_);
      before = before_reads_;
    }
    return before ? before(path) : absl::OkStatus();
  }
  void BeforeSync(const std::string& path) {
    std::function<void(const std::string&)> before;
    {
      absl::MutexLock lock(&mu_);
      before = before_syncs_;
    }
    if (before) before(path);
  }
  bool Flips(const std::string& path) const {
    absl::MutexLock lock(&mu_);
    return !flipped_.empty() && path.find(flipped_) != std::string::npos;
  }

  absl::Status Note(const std::string& what, const std::string& path) {
    absl::MutexLock lock(&mu_);
    const int number = count_++;
    std::string line = absl::StrCat(what, " ", path.substr(path.rfind('/') + 1));
    const bool named = !fail_on_.empty() && line.find(fail_on_) != std::string::npos;
    if (named || (fail_at_ >= 0 && (number == fail_at_ || (all_ && number > fail_at_)))) {
      return absl::ResourceExhaustedError(absl::StrCat(what, " ", path, ": no space (injected)"));
    }
    done_.push_back(std::move(line));
    return absl::OkStatus();
  }

  mutable absl::Mutex mu_;
  std::vector<std::string> done_ ABSL_GUARDED_BY(mu_);
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  int fail_at_ ABSL_GUARDED_BY(mu_) = -1;
  bool all_ ABSL_GUARDED_BY(mu_) = false;
  std::string fail_on_ ABSL_GUARDED_BY(mu_);
  std::function<absl::Status(const std::string&)> before_reads_ ABSL_GUARDED_BY(mu_);
  std::function<void(const std::string&)> before_syncs_ ABSL_GUARDED_BY(mu_);
  std::string flipped_ ABSL_GUARDED_BY(mu_);
  std::string mount_point_ ABSL_GUARDED_BY(mu_);
  FolderLocks folder_locks_ ABSL_GUARDED_BY(mu_) = FolderLocks::kEverybodys;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_TESTS_UNIT_CHECKPOINT_RECORDING_STORAGE_H_
