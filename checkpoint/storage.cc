// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "common/durable_file.h"
#include "common/fd.h"
#include "common/mapped_bytes.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "common/write_behind.h"

namespace lockstep::checkpoint {
namespace {

absl::Status Failed(const char* what, const std::string& path) {
  return ErrnoStatus(errno, absl::StrCat(what, " ", path));
}

class DiskFile : public Storage::File {
 public:
  DiskFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Append(const void* data, size_t bytes) override {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_.get(), next, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("write", path_);
      next += n;
      bytes -= static_cast<size_t>(n);
      if (const int failed = behind_.Appended(fd_.get(), static_cast<size_t>(n)); failed != 0) {
        return ErrnoStatus(failed, absl::StrCat("write ", path_));
      }
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return ::fsync(fd_.get()) == 0 ? absl::OkStatus() : Failed("fsync", path_);
  }

 private:
  const std::string path_;
  const UniqueFd fd_;
  WriteBehind behind_;
};

// Mapped: copying from a mapping takes half the time of read(2).
class DiskSource : public Storage::Source {
 public:
  DiskSource(std::string path, MappedBytes bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}

  uint64_t size() const override { return bytes_.size(); }
  absl::Status ReadAt(uint64_t offset, void* to, size_t bytes) override {
    if (offset > size() || bytes > size() - offset) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends at ", size(), ", before ", offset, " + ", bytes));
    }
    if (bytes == 0) return absl::OkStatus();
    std::memcpy(to, bytes_.data() + offset, bytes);
    return bytes_.Check();
  }

 private:
  const std::string path_;
  const MappedBytes bytes_;
};

class DiskHold : public Storage::Hold {
 public:
  explicit DiskHold(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  const UniqueFd fd_;  // the lock is the descriptor's
};

// Returns whether `path` names what `fd` is open for.
bool IsAt(int fd, const std::string& path) {
  struct stat opened {
  }, there{};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The deepest folder on the way to the absolute `path` that is there, without links in its name.
absl::StatusOr<std::string> DeepestOf(std::string path) {
  while (true) {
    char* const real = ::realpath(path.c_str(), nullptr);
    if (real != nullptr) {
      std::string found = real;
      std::free(real);
      return found;
    }
    if (errno != ENOENT && errno != ENOTDIR) return Failed("look at", path);
    struct stat info;
    if (::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
      return absl::UnavailableError(
          absl::StrCat(path, " is a link to something that is not there (not mounted?)"));
    }
    path = ParentOf(path);
  }
}

// Returns whether the folder `path` is where a file system is mounted. Bind mounts have their
// folder's device, so that the kernel's word is better, where it gives one (Linux 5.8).
absl::StatusOr<bool> IsMountPoint(const std::string& path) {
  struct statx info {};
  if (::statx(AT_FDCWD, path.c_str(), AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &info) != 0) {
    return Failed("stat", path);
  }
  if ((info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
  struct statx above {};
  if (::statx(AT_FDCWD, ParentOf(path).c_str(), AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &above) != 0) {
    return Failed("stat", ParentOf(path));
  }
  return info.stx_dev_major != above.stx_dev_major || info.stx_dev_minor != above.stx_dev_minor;
}

constexpr size_t kCopyPiece = size_t{256} << 10;
constexpr int kTries = 100;
constexpr int kDeepest = 32;  // folders within each other that are removed

// Where a link is made before it takes the place of what is at `to`.
std::string LinkingPath(const std::string& to) {
  return absl::StrCat(ParentOf(to), "/", kLinkingPrefix, to.substr(to.rfind('/') + 1), "-",
                      RandomHex(8));
}

// Gives the link at `beside` its name. Returns whether it was still there: whoever tidies the
// folder removes such links at sight, since their writers make them again.
absl::StatusOr<bool> TakePlace(const std::string& beside, const std::string& to) {
  absl::Status failed;
  const bool renamed = ::rename(beside.c_str(), to.c_str()) == 0;
  if (!renamed && errno == ENOENT) return false;
  if (!renamed) failed = Failed("rename to", to);
  ::unlink(beside.c_str());  // a rename leaves it too when `to` was a name of that file already
  LS_RETURN_IF_ERROR(failed);
  return true;
}

absl::Status RemoveOne(const std::string& path, int flags) {
  if (::unlinkat(AT_FDCWD, path.c_str(), flags) == 0 || errno == ENOENT) return absl::OkStatus();
  return Failed("remove", path);
}

class DiskStorage : public Storage {
 public:
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd.valid()) return Failed("create", path);
    // Whoever tidies the folder leaves it alone. Over SMB a shared lock forbids writing.
    ::flock(fd.get(), LOCK_EX | LOCK_NB);
    return std::make_unique<DiskFile>(path, std::move(fd));
  }

  absl::Status MakeFile(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    return fd.valid() ? absl::OkStatus() : Failed("create", path);
  }

  absl::Status MakeFolder(const std::string& path) override { return CreateFolders(path); }

  absl::Status SyncFolder(const std::string& path) override {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return Failed("open", path);
    // Some file systems cannot flush a folder and say EINVAL; they have nothing to flush.
    if (::fsync(fd.get()) != 0 && errno != EINVAL) return Failed("fsync", path);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      return absl::OkStatus();
    }
    if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    if (errno != ENOTEMPTY && errno != EEXIST) return Failed("rename to", to);
    // A file system that cannot exchange: the old folder goes first.
    LS_RETURN_IF_ERROR(Remove(to));
    return ::rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : Failed("rename to", to);
  }

  absl::StatusOr<std::unique_ptr<Source>> Open(const std::string& path) override {
    LS_ASSIGN_OR_RETURN(MappedBytes bytes, MappedBytes::OpenFile(path));
    return std::make_unique<DiskSource>(path, std::move(bytes));
  }

  absl::StatusOr<std::string> Read(const std::string& path, uint64_t limit) override {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid() && errno == ENOTDIR) {
      return absl::NotFoundError(absl::StrCat("open ", path, ": what it lies in is no folder"));
    }
    if (!fd.valid()) return Failed("open", path);
    std::string text;
    char buffer[1 << 16];
    while (true) {
      const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("read", path);
      if (n == 0) return text;
      text.append(buffer, static_cast<size_t>(n));
      if (text.size() > limit) {
        return absl::DataLossError(absl::StrCat(path, " is longer than ", limit, " bytes"));
      }
    }
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::vector<std::string> names;
    DIR* folder = ::opendir(path.c_str());
    if (folder == nullptr) {
      if (errno == ENOENT || errno == ENOTDIR) return names;
      return Failed("open", path);
    }
    while (true) {
      errno = 0;  // the end and an error look alike otherwise
      const dirent* const entry = ::readdir(folder);
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    absl::Status read = errno == 0 ? absl::OkStatus() : Failed("read the folder", path);
    ::closedir(folder);
    LS_RETURN_IF_ERROR(read);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<std::string> MountPoint(const std::string& path) override {
    std::error_code error;
    const std::string absolute = std::filesystem::absolute(path, error).string();
    if (error) return ErrnoStatus(error.value(), absl::StrCat("look at ", path));
    LS_ASSIGN_OR_RETURN(std::string at, DeepestOf(absolute));
    while (at != "/") {
      LS_ASSIGN_OR_RETURN(const bool mounted, IsMountPoint(at));
      if (mounted) return at;
      at = ParentOf(at);
    }
    return at;
  }

  absl::Status Remove(const std::string& path) override { return RemoveTree(path, kDeepest); }

  absl::Status Link(const std::string& from, const std::string& to,
                    const std::function<bool()>& go_on) override {
    for (int i = 0; i < kTries; ++i) {
      const std::string beside = LinkingPath(to);
      if (::link(from.c_str(), beside.c_str()) != 0) {
        if (errno == EEXIST) continue;
        if (errno != EXDEV && errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK &&
            errno != ENOSYS) {
          return Failed("link", from);
        }
        return Copy(from, to, go_on);
      }
      LS_ASSIGN_OR_RETURN(const bool placed, TakePlace(beside, to));
      if (placed) return absl::OkStatus();
    }
    return absl::CancelledError("somebody removes it");
  }

  absl::Status Point(const std::string& link, const std::string& target) override {
    for (int i = 0; i < kTries; ++i) {
      const std::string beside = LinkingPath(link);
      if (::symlink(target.c_str(), beside.c_str()) != 0) {
        if (errno == EEXIST) continue;
        return Failed("link", link);
      }
      LS_ASSIGN_OR_RETURN(const bool placed, TakePlace(beside, link));
      if (placed) return absl::OkStatus();
    }
    return absl::CancelledError("somebody removes it");
  }

  absl::Status Unpoint(const std::string& link,
                       const std::function<bool(const std::string&)>& is_own) override {
    char target[PATH_MAX];
    const ssize_t n = ::readlink(link.c_str(), target, sizeof(target));
    if (n < 0) return errno == ENOENT || errno == EINVAL ? absl::OkStatus() : Failed("read", link);
    if (!is_own(std::string(target, static_cast<size_t>(n)))) return absl::OkStatus();
    return RemoveOne(link, 0);
  }

  absl::StatusOr<std::unique_ptr<Hold>> TakeHold(const std::string& path, bool exclusive) override {
    // Over NFS who locks alone has to have it open for writing; no folder can be.
    UniqueFd fd;
    if (exclusive) fd.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return Failed("open", path);
    if (::flock(fd.get(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) {
      // Who held it alone before may have removed it: then this is a hold of nothing.
      if (!IsAt(fd.get(), path)) return absl::NotFoundError(absl::StrCat(path, " was removed"));
      return std::make_unique<DiskHold>(std::move(fd));
    }
    if (errno == EWOULDBLOCK) return std::unique_ptr<Hold>();
    // No locks there: who wants to remove must not, who only says that it is at work may.
    if (exclusive) {
      return absl::UnimplementedError(
          absl::StrCat("lock ", path, ": ", std::generic_category().message(errno)));
    }
    return std::make_unique<DiskHold>(std::move(fd));
  }

 private:
  // Checkpoints have no folders; file browsers and file servers put some in.
  absl::Status RemoveTree(const std::string& path, int depth) {
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) {
      return errno == ENOENT ? absl::OkStatus() : Failed("stat", path);
    }
    if (!S_ISDIR(info.st_mode)) return RemoveOne(path, 0);
    if (depth == 0) {
      return absl::FailedPreconditionError(absl::StrCat("remove ", path, ": it lies too deep"));
    }
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, List(path));
    for (const std::string& name : names) {
      LS_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", name), depth - 1));
    }
    return RemoveOne(path, AT_REMOVEDIR);
  }

  static absl::Status Copy(const std::string& from, const std::string& to,
                           const std::function<bool()>& go_on) {
    UniqueFd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
    if (!in.valid()) return Failed("open", from);
    LS_ASSIGN_OR_RETURN(DurableFile out, DurableFile::Create(to));
    std::string buffer(kCopyPiece, '\0');
    while (true) {
      if (go_on != nullptr && !go_on()) return absl::CancelledError("given up");
      const ssize_t n = ::read(in.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("read", from);
      if (n == 0) return out.Commit();
      LS_RETURN_IF_ERROR(out.Append(buffer.data(), static_cast<size_t>(n)));
    }
  }
};

}  // namespace

Storage* Storage::Disk() {
  static auto* const disk = new DiskStorage;
  return disk;
}

absl::Status WriteWhole(Storage* storage, const std::string& path, std::string_view contents) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Storage::File> file, storage->Create(path));
  LS_RETURN_IF_ERROR(file->Append(contents.data(), contents.size()));
  return file->Sync();
}

}  // namespace lockstep::checkpoint
