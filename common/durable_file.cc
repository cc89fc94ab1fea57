// SPDX-License-Identifier: Apache-2.0
#include "common/durable_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/random_hex.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr size_t kRandomBytes = 8;  // of a temporary name

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// What the names beside `path` begin with under which it is written.
std::string TemporaryBase(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t base = slash == std::string::npos ? 0 : slash + 1;
  // Of a long one the beginning.
  constexpr size_t kMost =
      NAME_MAX - std::string_view(kTemporaryPrefix).size() - 1 - 2 * kRandomBytes;
  return absl::StrCat(path.substr(0, base), kTemporaryPrefix, path.substr(base, kMost), "-");
}

// The first one that is tried for a file that had none until it was whole: what a killed process
// left under it is found without a look through the folder.
std::string FirstTemporaryName(const std::string& path) {
  return absl::StrCat(TemporaryBase(path), std::string(2 * kRandomBytes, '0'));
}

// One that no other writer uses.
std::string TemporaryName(const std::string& path) {
  return absl::StrCat(TemporaryBase(path), RandomHex(kRandomBytes));
}

absl::Status NoFreeName(const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(
      "no free temporary name beside ", path, "; remove the ", kTemporaryPrefix, "* files there"));
}

// Holds the file alone. Returns whether nobody else does; where there are no locks nobody does.
bool Hold(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

bool HasName(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

// Removes the file `left` beside a target if its writer is gone. What cannot be looked at stays.
void RemoveIfLeft(const std::string& left) {
  // Over NFS who locks alone has to have it open for writing.
  const UniqueFd fd(::open(left.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return;
  // Since it was opened it may have become the target, and another writer's have its name.
  struct stat opened, there;
  if (::fstat(fd.get(), &opened) == 0 && ::lstat(left.c_str(), &there) == 0 &&
      opened.st_dev == there.st_dev && opened.st_ino == there.st_ino) {
    ::unlink(left.c_str());
  }
}

// Removes what writers of `path` left that are gone.
void RemoveLeft(const std::string& folder, const std::string& path) {
  const std::string base = TemporaryBase(path);
  const std::string name = base.substr(base.rfind('/') + 1);
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string left = entry->path().string();
    if (!absl::StartsWith(entry->path().filename().string(), name)) continue;
    RemoveIfLeft(left);
  }
}

absl::Status FlushFolder(const std::string& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", folder));
  // Some file systems cannot flush a folder and say EINVAL; they have nothing to flush.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, absl::StrCat("fsync ", folder));
  }
  return absl::OkStatus();
}

constexpr int kTries = 64;

}  // namespace

DurableFile::DurableFile(std::string path, std::string folder, std::string temporary, UniqueFd fd)
    : path_(std::move(path)),
      folder_(std::move(folder)),
      temporary_(std::move(temporary)),
      fd_(std::move(fd)) {}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)),
      folder_(std::move(other.folder_)),
      temporary_(std::exchange(other.temporary_, std::string())),
      fd_(std::move(other.fd_)),
      behind_(other.behind_) {}

DurableFile::~DurableFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path) {
  const std::string folder = FolderOf(path);
  LS_RETURN_IF_ERROR(CreateFolders(folder));
  struct stat existing;
  if (::stat(path.c_str(), &existing) == 0 && S_ISDIR(existing.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a folder"));
  }
  UniqueFd unnamed(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  if (unnamed.valid()) {
    Hold(unnamed.get());  // before it gets a name
    return DurableFile(path, folder, "", std::move(unnamed));
  }
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("create a file in ", folder));
  }
  RemoveLeft(folder, path);
  for (int i = 0; i < kTries; ++i) {
    std::string name = TemporaryName(path);
    UniqueFd fd(::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
    if (!fd.valid() && errno == EEXIST) continue;
    if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", name));
    if (Hold(fd.get()) && HasName(fd.get())) {
      return DurableFile(path, folder, std::move(name), std::move(fd));
    }
    ::unlink(name.c_str());  // somebody removed it before it was held
  }
  return NoFreeName(path);
}

absl::Status DurableFile::Append(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_.get(), next, bytes);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("write ", path_));
    }
    next += n;
    bytes -= static_cast<size_t>(n);
    if (const int failed = behind_.Appended(fd_.get(), static_cast<size_t>(n)); failed != 0) {
      return ErrnoStatus(failed, absl::StrCat("write ", path_));
    }
  }
  return absl::OkStatus();
}

absl::Status DurableFile::NameIt() {
  const std::string source = absl::StrCat("/proc/self/fd/", fd_.get());
  std::string name = FirstTemporaryName(path_);
  for (int i = 0; i < kTries; ++i) {
    if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_ = std::move(name);
      return absl::OkStatus();
    }
    if (errno != EEXIST) return ErrnoStatus(errno, absl::StrCat("link ", name));
    if (i == 0) RemoveIfLeft(name);
    if (i > 0) name = TemporaryName(path_);
  }
  return NoFreeName(path_);
}

absl::Status DurableFile::Commit() {
  LS_CHECK(fd_.valid()) << "Commit called twice";
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path_));
  if (temporary_.empty()) LS_RETURN_IF_ERROR(NameIt());
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename to ", path_));
  }
  temporary_.clear();
  fd_.reset();
  return FlushFolder(folder_);
}

absl::Status CreateFolders(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  }
  if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  const std::string parent = FolderOf(path);
  if (parent != path) LS_RETURN_IF_ERROR(CreateFolders(parent));
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("make folder ", path));
  }
  return FlushFolder(parent);
}

absl::Status WriteFileDurably(const std::string& path, std::string_view contents) {
  absl::StatusOr<DurableFile> file = DurableFile::Create(path);
  if (!file.ok()) return file.status();
  LS_RETURN_IF_ERROR(file->Append(contents));
  return file->Commit();
}

}  // namespace lockstep
