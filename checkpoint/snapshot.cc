// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/round_up.h"
#include "common/status.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace lockstep::checkpoint {
namespace {
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kPiece = 16 << 20;
}  // namespace

absl::StatusOr<std::unique_ptr<Snapshot>> Snapshot::Reserve(size_t bytes) {
  const size_t whole = std::max(kHugePage, RoundUp(bytes, kHugePage));
  void* data = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(
        errno, absl::StrCat("no room for a copy of ", bytes, " bytes of the training state"));
  }
  // Fewer and cheaper page faults where the machine has large pages to give.
  ::madvise(data, whole, MADV_HUGEPAGE);
  return std::unique_ptr<Snapshot>(new Snapshot(static_cast<char*>(data), whole));
}

Snapshot::~Snapshot() { ::munmap(data_, bytes_); }

void Snapshot::Touch(size_t bytes, const std::function<bool()>& go_on) {
  for (size_t at = 0; at < std::min(bytes, bytes_) && go_on(); at += kPiece) {
    // A kernel that does not know this leaves the pages to the first copy.
    if (::madvise(data_ + at, std::min(kPiece, bytes_ - at), MADV_POPULATE_WRITE) != 0) return;
  }
}

}  // namespace lockstep::checkpoint
