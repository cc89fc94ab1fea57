// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/available_memory.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/round_up.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr size_t kAlign = 64;

// A peer relies on the size (no SIGBUS) and on the owner being the only writer.
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Left for everyone else.
constexpr int64_t kMemoryMargin = 64 << 20;
// Between two looks while it is not enough.
constexpr absl::Duration kLookAgain = absl::Milliseconds(10);

// Holds the lock of `file`, which the processes of this host contend for; the kernel gives back
// that of one that dies. Without a file, or where there are no locks, it holds nothing.
class Turn {
 public:
  explicit Turn(int file) : file_(file) { Set(F_WRLCK, F_SETLKW); }
  ~Turn() { Set(F_UNLCK, F_SETLK); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  void Set(short type, int command) const {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    while (file_ >= 0 && ::fcntl(file_, command, &lock) != 0 && errno == EINTR) {
    }
  }
  const int file_;
};

// Takes [begin, end) of `fd` if `rest` and the margin are there; `left` becomes what is. Returns
// whether it was taken.
absl::StatusOr<bool> TakeIfThere(int fd, size_t begin, size_t end, int64_t rest,
                                 const ArenaOptions& options, const std::string& what,
                                 int64_t* left) {
  std::optional<Turn> turn;
  *left = AvailableMemory();
  if (*left - kMemoryMargin - rest < options.plenty_bytes) {
    turn.emplace(options.turns);
    *left = AvailableMemory();
  }
  if (*left - kMemoryMargin < rest) return false;
  int result;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  } while (result != 0 && errno == EINTR);
  if (result != 0) return ErrnoStatus(errno, what);
  return true;
}

// Takes the space now, so that a lack is an error here and not a SIGBUS or the OOM killer later.
absl::Status Reserve(int fd, size_t from, size_t to, const ArenaOptions& options,
                     const std::string& what) {
  const absl::Time deadline = Clock::Real()->Now() + options.patience;
  for (size_t begin = from; begin < to; begin += kReservePiece) {
    const size_t end = std::min<size_t>(begin + kReservePiece, to);
    const auto rest = static_cast<int64_t>(to - begin);
    while (true) {
      int64_t left = 0;
      LS_ASSIGN_OR_RETURN(const bool taken,
                          TakeIfThere(fd, begin, end, rest, options, what, &left));
      if (taken) break;
      if (Clock::Real()->Now() >= deadline) {
        return absl::ResourceExhaustedError(
            absl::StrCat(what, ": ", left >> 20, " MiB are available, ", rest >> 20,
                         " MiB more are needed: use fewer workers, a smaller model, or a host with "
                         "more memory"));
      }
      Clock::Real()->Sleep(kLookAgain);
    }
  }
  return absl::OkStatus();
}

size_t RoundDown(size_t bytes, size_t page) { return bytes / page * page; }

// The same memory, to be read.
absl::StatusOr<UniqueFd> ReadOnly(int fd) {
  UniqueFd opened(::open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.valid()) return ErrnoStatus(errno, "opening the arena to be read (needs /proc)");
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnArena>> OwnArena::Create(size_t heap_bytes, size_t reserved_bytes,
                                                           const ArenaOptions& options) {
  auto arena = std::unique_ptr<OwnArena>(new OwnArena(options));
  if (heap_bytes > SIZE_MAX / 4 || reserved_bytes > SIZE_MAX / 4) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an arena of ", heap_bytes, " + ", reserved_bytes, " bytes"));
  }
  arena->heap_end_ = RoundUp(kHeapOffset + heap_bytes, options.page_bytes);
  arena->bytes_ = arena->heap_end_ + RoundUp(reserved_bytes, options.page_bytes);
  const std::string what =
      absl::StrCat("reserving ", arena->heap_end_ >> 20, " MiB of shared memory for gradients");
  arena->fd_.reset(::memfd_create("lockstep-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = arena->fd_.get();
  if (fd < 0) return ErrnoStatus(errno, "memfd_create");
  const auto size = static_cast<off_t>(arena->bytes_);
  if (::ftruncate(fd, size) != 0) return ErrnoStatus(errno, what);
  LS_RETURN_IF_ERROR(Reserve(fd, 0, arena->heap_end_, options, what));
  void* base = ::mmap(nullptr, arena->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, what);
  arena->base_ = static_cast<char*>(base);
  // Mapped writable here; from now on nobody else can be. Sealed so, no page could be given back.
  const int writing = reserved_bytes == 0 ? F_SEAL_FUTURE_WRITE : 0;
  if (reserved_bytes > 0) {
    LS_ASSIGN_OR_RETURN(arena->shared_fd_, ReadOnly(fd));
  }
  if (::fcntl(fd, F_ADD_SEALS, kSizeSeals | writing | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "sealing the arena (needs Linux 5.1)");
  }
  ::madvise(base, arena->bytes_, MADV_HUGEPAGE);  // a wish: not every kernel has it
  RankHeader* header = new (base) RankHeader();
  header->header_bytes = kHeaderBytes;
  header->arena_bytes = arena->bytes_;
  return arena;
}

OwnArena::~OwnArena() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

absl::StatusOr<void*> OwnArena::Allocate(size_t bytes, const std::string& what) {
  const size_t left = heap_end_ - used_;
  if (bytes > left || RoundUp(bytes, kAlign) > left) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", what, " in the shared arena: asked for ", bytes, " bytes, ",
                     left, " of ", heap_end_ - kHeapOffset, " are left"));
  }
  void* result = base_ + used_;
  used_ += RoundUp(bytes, kAlign);
  return result;
}

absl::StatusOr<void*> OwnArena::ReservePages(size_t bytes, const std::string& what) {
  const size_t left = bytes_ - heap_end_ - loose_used_;
  const size_t pages = RoundUp(bytes, options_.page_bytes);
  if (bytes > left || pages > left) {
    return absl::ResourceExhaustedError(absl::StrCat("no room for ", what,
                                                     " in the shared arena: asked for ", bytes,
                                                     " reserved bytes, ", left, " are left"));
  }
  void* result = base_ + heap_end_ + loose_used_;
  loose_used_ += pages;
  return result;
}

absl::Status OwnArena::CommitPages(void* data, size_t bytes, const std::string& what) {
  const auto begin = static_cast<size_t>(static_cast<char*>(data) - base_);
  return Reserve(fd_.get(), RoundDown(begin, options_.page_bytes),
                 RoundUp(begin + bytes, options_.page_bytes), options_, what);
}

void OwnArena::ReleasePages(void* data, size_t bytes) {
  const auto offset = static_cast<size_t>(static_cast<char*>(data) - base_);
  const size_t begin = RoundUp(offset, options_.page_bytes);
  const size_t end = RoundDown(offset + bytes, options_.page_bytes);
  if (begin >= end) return;
  // What cannot be given back stays with us: a loss of memory, not of anything else.
  (void)!::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(begin), static_cast<off_t>(end - begin));
}

uint64_t OwnArena::OffsetOf(const void* data, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(base_);
  if (address < base + kHeapOffset || address > base + bytes_) return CallSlot::kForeign;
  if (bytes > base + bytes_ - address) return CallSlot::kForeign;
  return address - base;
}

absl::StatusOr<std::shared_ptr<PeerArena>> PeerArena::Map(UniqueFd fd, size_t page_bytes) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, "fstat of a peer's arena");
  const auto bytes = static_cast<size_t>(status.st_size);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || bytes < kHeapOffset) {
    return absl::FailedPreconditionError("the peer's descriptor is not an arena of this build");
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "mapping a peer's arena");
  auto arena = std::shared_ptr<PeerArena>(new PeerArena(page_bytes));
  arena->base_ = static_cast<const char*>(base);
  arena->bytes_ = bytes;
  const RankHeader& header = *arena->header();
  if (header.magic != kArenaMagic || header.version != kLayoutVersion ||
      header.header_bytes != kHeaderBytes || header.arena_bytes != bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer's arena has layout ", header.version, " of ", header.header_bytes,
                     " bytes, this build has ", kLayoutVersion, " of ", kHeaderBytes,
                     ": run the same build on every rank"));
  }
  return arena;
}

void PeerArena::Release(const std::vector<Range>& kept) {
  if (std::exchange(released_, true)) return;
  struct Copy {
    size_t begin = 0, end = 0;
    void* memory = MAP_FAILED;
    size_t size() const { return end - begin; }
  };
  std::vector<Copy> wanted = {{0, RoundUp(kHeaderBytes, page_bytes_), MAP_FAILED}};
  for (const Range& range : kept) {
    if (range.bytes == 0) continue;
    const auto begin = static_cast<size_t>(static_cast<const char*>(range.data) - base_);
    wanted.push_back(
        {RoundDown(begin, page_bytes_), RoundUp(begin + range.bytes, page_bytes_), MAP_FAILED});
  }
  std::sort(wanted.begin(), wanted.end(),
            [](const Copy& a, const Copy& b) { return a.begin < b.begin; });
  std::vector<Copy> copies;  // no page is in two
  for (const Copy& each : wanted) {
    if (copies.empty() || each.begin > copies.back().end) {
      copies.push_back(each);
    } else {
      copies.back().end = std::max(copies.back().end, each.end);
    }
  }
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  for (Copy& copy : copies) {
    copy.memory = ::mmap(nullptr, copy.size(), PROT_READ | PROT_WRITE, kPrivate, -1, 0);
    if (copy.memory == MAP_FAILED) {
      for (const Copy& made : copies) {
        if (made.memory != MAP_FAILED) ::munmap(made.memory, made.size());
      }
      return;
    }
    std::memcpy(copy.memory, base_ + copy.begin, copy.size());
  }
  // The addresses stay ours, so that whoever reads what is gone reads nobody else's memory.
  char* const base = const_cast<char*>(base_);
  LS_CHECK(::mmap(base, bytes_, PROT_NONE, kPrivate | MAP_NORESERVE | MAP_FIXED, -1, 0) == base);
  for (const Copy& copy : copies) {
    LS_CHECK(::mremap(copy.memory, copy.size(), copy.size(), MREMAP_MAYMOVE | MREMAP_FIXED,
                      base + copy.begin) == base + copy.begin);
  }
}

PeerArena::~PeerArena() {
  if (base_ != nullptr) ::munmap(const_cast<char*>(base_), bytes_);
}

}  // namespace lockstep
