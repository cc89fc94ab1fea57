// SPDX-License-Identifier: Apache-2.0
#include "common/mapped_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"

namespace lockstep {
namespace {

absl::Status MapError(int error_number, const std::string& path) {
  absl::Status status = ErrnoStatus(error_number, absl::StrCat("map ", path));
  if (error_number != ENOMEM) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(),
                   "; where memory is free, the process has as many mappings as the kernel allows: "
                   "raise vm.max_map_count (sysctl), or join the files to fewer ones"));
}

}  // namespace

absl::StatusOr<MappedBytes> MappedBytes::OpenFile(const std::string& path) {
  // O_NONBLOCK: a FIFO in the file's place must not hang the open.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  if (info.st_size == 0) return MappedBytes();
  return MapFd(fd.get(), static_cast<size_t>(info.st_size), /*writable=*/false, path);
}

absl::StatusOr<MappedBytes> MappedBytes::MapFd(int fd, size_t bytes, bool writable,
                                               const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  void* data =
      ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return MapError(errno, path);
  MappedBytes mapped(data, bytes);
  mapped.guard_ = BusGuard::Guard(data, bytes, writable);
  mapped.path_ = path;
  mapped.device_ = info.st_dev;
  mapped.inode_ = info.st_ino;
  return mapped;
}

absl::Status MappedBytes::Check() const {
  if (guard_ == nullptr) return absl::OkStatus();
  const bool hit = guard_->hit();
  // The rest of the last page reads as zeros without a signal, so that the length counts. By name,
  // since a folder of many files would need a descriptor for each.
  struct stat info;
  if (::stat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_ &&
      static_cast<uint64_t>(info.st_size) < size_) {
    return absl::DataLossError(absl::StrCat(path_, " was truncated while in use: it has ",
                                            info.st_size, " bytes, it had ", size_));
  }
  if (!hit) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("read ", path_, ": ", std::generic_category().message(EIO),
                   " (its disk or its server failed, or it was rewritten while in use)"));
}

absl::StatusOr<MappedBytes> MappedBytes::Anonymous(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", bytes, " bytes"));
  return MappedBytes(data, bytes);
}

MappedBytes::MappedBytes(MappedBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::exchange(other.guard_, nullptr)),
      path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_) {}

MappedBytes& MappedBytes::operator=(MappedBytes&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(guard_, other.guard_);
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

MappedBytes::~MappedBytes() {
  if (guard_ != nullptr) guard_->Release();
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace lockstep
