// SPDX-License-Identifier: Apache-2.0
// An owned mapping: a file read-only, or fresh memory. What is read of a file that is truncated
// meanwhile, or cannot be read, is zeros and not SIGBUS (bus_guard.h); Check tells, after reading
// and before what was read is used.
// Thread-safety: thread-compatible; Check may be called by several threads.
#ifndef LOCKSTEP_COMMON_MAPPED_BYTES_H_
#define LOCKSTEP_COMMON_MAPPED_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/bus_guard.h"

namespace lockstep {

class MappedBytes {
 public:
  MappedBytes() = default;
  // Maps the regular file `path` read-only. Errors: NotFound, FailedPrecondition (permission, not a
  // regular file), ResourceExhausted; they name the file.
  static absl::StatusOr<MappedBytes> OpenFile(const std::string& path);
  // Maps `bytes` > 0 of the open file `fd`, which the mapping does not own and which lies at `path`
  // (if it is renamed, its length is not checked any more).
  static absl::StatusOr<MappedBytes> MapFd(int fd, size_t bytes, bool writable,
                                           const std::string& path);
  // Zeroed memory, aligned to a page. Errors: ResourceExhausted.
  static absl::StatusOr<MappedBytes> Anonymous(size_t bytes);
  MappedBytes(MappedBytes&& other) noexcept;
  MappedBytes& operator=(MappedBytes&& other) noexcept;
  ~MappedBytes();

  // OK when what was read of the file so far is what it holds. One system call for a file; OK for
  // memory. Errors: DataLoss when the file was truncated; Unavailable when a read of it failed.
  // They name the file.
  absl::Status Check() const;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  absl::Span<const uint8_t> span() const { return {data_, size_}; }
  // Only for memory and for writable mappings.
  absl::Span<uint8_t> writable() { return {data_, size_}; }

 private:
  MappedBytes(void* data, size_t size) : data_(static_cast<uint8_t*>(data)), size_(size) {}
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  // Of a file.
  BusGuard* guard_ = nullptr;
  std::string path_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_MAPPED_BYTES_H_
