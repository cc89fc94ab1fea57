// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"

namespace lockstep::data {

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
                                               const std::string& name) {
  void* data =
      ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", name));
  return MappedBytes(data, bytes);
}

absl::StatusOr<MappedBytes> MappedBytes::Anonymous(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", bytes, " bytes"));
  return MappedBytes(data, bytes);
}

MappedBytes::MappedBytes(MappedBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedBytes& MappedBytes::operator=(MappedBytes&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedBytes::~MappedBytes() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace lockstep::data
