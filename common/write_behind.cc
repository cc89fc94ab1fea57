// SPDX-License-Identifier: Apache-2.0
#include "common/write_behind.h"

#include <fcntl.h>

#include <cerrno>

namespace lockstep {
namespace {

// An empty range asks for nothing and shows whether the call is there, and allowed.
bool CanSyncRange(int fd) { return ::sync_file_range(fd, 0, 0, 0) == 0; }

// What the disk failed with is told once: the flush at the end would not hear of it.
int SyncRange(int fd, int64_t begin, int64_t end, unsigned flags) {
  return begin == end || ::sync_file_range(fd, begin, end - begin, flags) == 0 ? 0 : errno;
}

}  // namespace

int WriteBehind::Appended(int fd, size_t bytes) {
  end_ += static_cast<int64_t>(bytes);
  if (end_ - begun_ < kWriteBehind) return 0;
  if (!asked_.has_value()) asked_ = CanSyncRange(fd);
  if (!*asked_) return 0;  // the flush at the end does it all
  constexpr unsigned kBegin = SYNC_FILE_RANGE_WRITE;
  constexpr unsigned kFinish =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (const int failed = SyncRange(fd, begun_, end_, kBegin); failed != 0) return failed;
  if (const int failed = SyncRange(fd, written_, begun_, kFinish); failed != 0) return failed;
  written_ = begun_;
  begun_ = end_;
  return 0;
}

}  // namespace lockstep
