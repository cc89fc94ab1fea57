// SPDX-License-Identifier: Apache-2.0
// The memory of one worker that its peers read: a memfd that its owner maps writable and everyone
// else read-only (F_SEAL_FUTURE_WRITE), so that a byte has one writer. It has no name in the file
// system, so nothing is left behind, and its space is reserved at creation. An arena with reserved
// memory, whose space comes and goes, cannot be sealed that way: its peers get a descriptor that
// cannot be written through. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COLLECTIVES_SHM_ARENA_H_
#define LOCKSTEP_COLLECTIVES_SHM_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/shm/layout.h"
#include "common/fd.h"
#include "common/page_size.h"

namespace lockstep {

// Taken between two looks at the memory that is left: others of the system take some, too.
inline constexpr int64_t kReservePiece = 64 << 20;

struct ArenaOptions {
  // How long memory that is short is waited for at most, in Create and CommitPages.
  absl::Duration patience;
  // The descriptor of a file that the workers of this host share, to be written: who holds its lock
  // looks at the memory that is left and takes some of it, so that no two take the same. -1: none.
  int turns = -1;
  // Where so much more is left than is asked for there are no turns: a piece for each worker of a
  // host, all at once.
  int64_t plenty_bytes = int64_t{kMaxRanksOfHost} * kReservePiece;
  // What memory is divided by; a multiple of PageSize().
  size_t page_bytes = PageSize();
};

// This worker's own arena.
class OwnArena {
 public:
  // With `heap_bytes` for Allocate and `reserved_bytes` for ReservePages. Blocks, as CommitPages
  // does, for its turn and for memory that is short. Errors: ResourceExhausted when the memory of
  // the heap is not there.
  static absl::StatusOr<std::unique_ptr<OwnArena>> Create(size_t heap_bytes,
                                                          size_t reserved_bytes = 0,
                                                          const ArenaOptions& options = {});
  ~OwnArena();
  OwnArena(const OwnArena&) = delete;
  OwnArena& operator=(const OwnArena&) = delete;

  // Zeroed, 64-byte aligned, for the arena's life. Errors: ResourceExhausted, naming `what`.
  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what);

  // As in Transport.
  absl::StatusOr<void*> ReservePages(size_t bytes, const std::string& what);
  absl::Status CommitPages(void* data, size_t bytes, const std::string& what);
  void ReleasePages(void* data, size_t bytes);

  // The offset of [data, data + bytes), or CallSlot::kForeign when it is not inside the heap.
  uint64_t OffsetOf(const void* data, size_t bytes) const;

  RankHeader* header() const { return reinterpret_cast<RankHeader*>(base_); }
  char* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  // Returns what peers get.
  int fd() const { return shared_fd_.valid() ? shared_fd_.get() : fd_.get(); }

 private:
  explicit OwnArena(const ArenaOptions& options) : options_(options) {}
  const ArenaOptions options_;
  UniqueFd fd_;
  UniqueFd shared_fd_;  // read-only; with reserved memory alone
  char* base_ = nullptr;
  size_t bytes_ = 0;
  size_t used_ = kHeapOffset;
  size_t heap_end_ = 0;  // where the reserved memory begins
  size_t loose_used_ = 0;
};

// A peer's arena, mapped read-only. It stays readable when its owner has died, until Release.
class PeerArena {
 public:
  struct Range {
    const void* data = nullptr;
    size_t bytes = 0;
  };

  // `page_bytes` as ArenaOptions has it. Errors: FailedPrecondition when it is not an arena of this
  // build's layout.
  static absl::StatusOr<std::shared_ptr<PeerArena>> Map(UniqueFd fd,
                                                        size_t page_bytes = PageSize());
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  const RankHeader* header() const { return reinterpret_cast<const RankHeader*>(base_); }
  const char* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  // For an arena whose owner has died: the header and the ranges `kept`, parts of it, become copies
  // of this process's own, at the same addresses; the rest is given back to the system (as soon as
  // all peers do so) and not to be read again. A second call does nothing. Where there is no memory
  // for the copies the arena stays as it is.
  void Release(const std::vector<Range>& kept);

 private:
  explicit PeerArena(size_t page_bytes) : page_bytes_(page_bytes) {}
  const size_t page_bytes_;
  const char* base_ = nullptr;
  size_t bytes_ = 0;
  bool released_ = false;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_ARENA_H_
