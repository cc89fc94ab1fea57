// SPDX-License-Identifier: Apache-2.0
// Brings what is appended to a file to the disk while it is appended. Else a fast writer fills the
// page cache alone, and the flush at the end takes as long as the disk does for all of the file,
// in which nobody can tell a slow disk from one that hangs.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COMMON_WRITE_BEHIND_H_
#define LOCKSTEP_COMMON_WRITE_BEHIND_H_

#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

// How much is written at a time; the flush at the end has twice that left.
inline constexpr int64_t kWriteBehind = int64_t{64} << 20;

class WriteBehind {
 public:
  // `bytes` more bytes were appended to the file `fd`, all of them through this. Once there are
  // kWriteBehind, the disk begins to write them, and this blocks until it has those before. Returns
  // 0, or the errno value of a disk that fails, which a flush need not tell again.
  int Appended(int fd, size_t bytes);

 private:
  int64_t end_ = 0;            // of the file
  int64_t begun_ = 0;          // before this the disk is writing, or has written
  int64_t written_ = 0;        // before this it has written
  std::optional<bool> asked_;  // whether it can be asked to
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_WRITE_BEHIND_H_
