// SPDX-License-Identifier: Apache-2.0
#include "data/decoded_cache.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/durable_file.h"
#include "common/fd.h"
#include "common/log.h"
#include "common/philox.h"
#include "common/status.h"

namespace lockstep::data {
namespace {

constexpr size_t kOffset = 4096;  // the decoded bytes begin at a page

// At the beginning of the file; the format's version is in the magic.
struct CopyHeader {
  char magic[8];
  uint64_t source_size;
  int64_t source_seconds;
  int64_t source_nanoseconds;
  uint64_t bytes;
  uint32_t payload_crc;
  uint32_t header_crc;  // of the fields before it
};
// Longer than the longest pauses between runs of the same data; a copy can be made again.
constexpr absl::Duration kKeep = absl::Hours(30 * 24);
constexpr absl::Duration kTouch = absl::Hours(24);
constexpr char kCopy[] = ".decoded", kLock[] = ".lock", kUnfinished[] = ".tmp";
constexpr size_t kHashDigits = 16;
constexpr char kMagic[8] = {'L', 'S', 'D', 'E', 'C', '0', '0', '1'};

// Returns whether `text` ended with `suffix`, which is taken off it.
bool TakeSuffix(std::string_view* text, std::string_view suffix) {
  if (!text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  return true;
}

// Returns whether a path is one that DecodedCopyPath may have made.
bool IsCopyName(std::string_view path) {
  if (!TakeSuffix(&path, kCopy) || path.size() <= kHashDigits) return false;
  const std::string_view hash = path.substr(path.size() - kHashDigits);
  return path[path.size() - kHashDigits - 1] == '-' &&
         hash.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

uint32_t HeaderCrc(const CopyHeader& header) {
  return libdeflate_crc32(0, &header, offsetof(CopyHeader, header_crc));
}

CopyHeader ExpectedHeader(const struct stat& info, size_t bytes) {
  CopyHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.source_size = static_cast<uint64_t>(info.st_size);
  header.source_seconds = info.st_mtim.tv_sec;
  header.source_nanoseconds = info.st_mtim.tv_nsec;
  header.bytes = bytes;
  return header;
}

// Maps the copy at `path` when it is whole and belongs to the source as it was. Any other state
// is an error, which means: make it.
absl::StatusOr<DecodedCopy> MapValid(const std::string& path, const CopyHeader& expected) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  // Another user's file in a shared folder is not believed.
  if (info.st_uid != ::geteuid() || !S_ISREG(info.st_mode) ||
      static_cast<uint64_t>(info.st_size) != kOffset + expected.bytes) {
    return absl::DataLossError(absl::StrCat(path, " is not the copy of this source"));
  }
  LS_ASSIGN_OR_RETURN(
      MappedBytes bytes,
      MappedBytes::MapFd(fd.get(), static_cast<size_t>(info.st_size), /*writable=*/false, path));
  CopyHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const bool same = std::memcmp(&header, &expected, offsetof(CopyHeader, payload_crc)) == 0;
  if (!same || header.header_crc != HeaderCrc(header) ||
      header.payload_crc != libdeflate_crc32(0, bytes.data() + kOffset, expected.bytes)) {
    return absl::DataLossError(absl::StrCat(path, " is stale or damaged"));
  }
  // Used now (IsUnused); where it may not be written nothing is removed. Not each time: over NFS
  // other hosts read again what was written to.
  if (absl::TimeFromTimespec(info.st_mtim) < Clock::Real()->Now() - kTouch) {
    ::futimens(fd.get(), nullptr);
  }
  return DecodedCopy{std::move(bytes), kOffset, true};
}

// Takes the lock at `path`; `operation` is LOCK_EX, or with LOCK_NB an error when another process
// holds it.
absl::StatusOr<UniqueFd> Lock(const std::string& path, int operation) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    UniqueFd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
    while (::flock(fd.get(), operation) != 0) {
      if (errno != EINTR) return ErrnoStatus(errno, absl::StrCat("lock ", path));
    }
    // Its last holder may have removed it (RemoveUnused): then others lock another file.
    struct stat held, named;
    if (::fstat(fd.get(), &held) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
    if (::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
        held.st_ino == named.st_ino) {
      return fd;
    }
  }
  return absl::UnavailableError(absl::StrCat("lock ", path, ": it is another file each time"));
}

// Returns whether nothing is at `path`, or a file of ours that was not used for kKeep.
bool IsUnused(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return errno == ENOENT;
  return S_ISREG(info.st_mode) && info.st_uid == ::geteuid() &&
         absl::TimeFromTimespec(info.st_mtim) < Clock::Real()->Now() - kKeep;
}

// Removes from `folder` what copies of other sources left that nobody used for a while: copies (who
// has one mapped keeps it), unfinished ones and locks. A source that is decoded just now, or whose
// state is not clear, is left alone.
void RemoveUnused(const std::string& folder) {
  std::set<std::string> copies;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::string_view name = it->path().native();
    if (!TakeSuffix(&name, kLock)) TakeSuffix(&name, kUnfinished);
    if (IsCopyName(name)) copies.emplace(name);
  }
  for (const std::string& copy : copies) {
    const auto unused = [&copy] {
      return IsUnused(copy) && IsUnused(absl::StrCat(copy, kUnfinished));
    };
    const std::string lock_path = absl::StrCat(copy, kLock);
    if (!unused() || !IsUnused(lock_path)) continue;
    const absl::StatusOr<UniqueFd> lock = Lock(lock_path, LOCK_EX | LOCK_NB);
    if (!lock.ok() || !unused()) continue;
    ::unlink(copy.c_str());
    ::unlink(absl::StrCat(copy, kUnfinished).c_str());
    ::unlink(lock_path.c_str());
  }
}

// Decodes straight into the file that becomes the copy, so that there is one copy in memory. The
// name of the unfinished file is fixed: only the holder of the lock uses it, and one that a killed
// process left is overwritten. No fsync: the checksum finds what a power cut tears.
absl::StatusOr<DecodedCopy> Make(const std::string& path, CopyHeader header,
                                 absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> decode,
                                 absl::Status* decode_status) {
  const std::string temporary = absl::StrCat(path, kUnfinished);
  UniqueFd fd(::open(temporary.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", temporary));
  const auto fill = [&]() -> absl::StatusOr<DecodedCopy> {
    // The space is reserved: a lack of it must be an error here and not SIGBUS in the mapping.
    const size_t total = kOffset + header.bytes;
    if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(total)); error != 0) {
      return ErrnoStatus(error, absl::StrCat("reserve ", total, " bytes for ", temporary));
    }
    LS_ASSIGN_OR_RETURN(MappedBytes bytes, MappedBytes::MapFd(fd.get(), total, true, temporary));
    *decode_status = decode(bytes.writable().subspan(kOffset));
    LS_RETURN_IF_ERROR(*decode_status);
    LS_RETURN_IF_ERROR(bytes.Check());
    header.payload_crc = libdeflate_crc32(0, bytes.data() + kOffset, header.bytes);
    header.header_crc = HeaderCrc(header);
    std::memcpy(bytes.writable().data(), &header, sizeof(header));
    // Maps again, read-only: a stray write must not reach what others share.
    LS_ASSIGN_OR_RETURN(bytes, MappedBytes::MapFd(fd.get(), total, false, path));
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("rename to ", path));
    }
    return DecodedCopy{std::move(bytes), kOffset, true};
  };
  absl::StatusOr<DecodedCopy> copy = fill();
  if (!copy.ok()) ::unlink(temporary.c_str());
  return copy;
}

// The copy that all share, made if need be. An error with OK in `decode_status` means that the
// cache cannot be used.
absl::StatusOr<DecodedCopy> OpenShared(const std::string& source, const struct stat& info,
                                       size_t bytes,
                                       absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> decode,
                                       absl::Status* decode_status) {
  const std::string path = DecodedCopyPath(source);
  if (path.empty()) return absl::NotFoundError("neither XDG_CACHE_HOME nor HOME is set");
  const CopyHeader expected = ExpectedHeader(info, bytes);
  if (absl::StatusOr<DecodedCopy> copy = MapValid(path, expected); copy.ok()) return copy;
  const std::string folder = path.substr(0, path.rfind('/'));
  LS_RETURN_IF_ERROR(CreateFolders(folder));
  LS_ASSIGN_OR_RETURN(const UniqueFd lock, Lock(absl::StrCat(path, kLock), LOCK_EX));
  if (absl::StatusOr<DecodedCopy> copy = MapValid(path, expected); copy.ok()) return copy;
  RemoveUnused(folder);  // first, since the new copy may need the room
  return Make(path, expected, decode, decode_status);
}

}  // namespace

std::string DecodedCopyPath(const std::string& source) {
  std::string folder;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && cache[0] == '/') {
    folder = absl::StrCat(cache, "/lockstep");
  } else if (home != nullptr && home[0] == '/') {
    folder = absl::StrCat(home, "/.cache/lockstep");
  } else {
    return "";
  }
  char* absolute = ::realpath(source.c_str(), nullptr);
  const std::string full = absolute == nullptr ? source : absolute;
  std::free(absolute);
  return absl::StrCat(folder, "/", full.substr(full.rfind('/') + 1), "-",
                      absl::Hex(SiteKey(0, full), absl::kZeroPad16), kCopy);
}

absl::StatusOr<DecodedCopy> OpenDecodedCopy(
    const std::string& source, const struct stat& info, size_t bytes,
    absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> decode) {
  absl::Status decode_status;
  absl::StatusOr<DecodedCopy> shared = OpenShared(source, info, bytes, decode, &decode_status);
  if (shared.ok()) return shared;
  if (!decode_status.ok()) return Annotate(decode_status, source);
  LS_LOG_WARNING << "no shared copy of " << source << " (" << shared.status().message()
                 << "); each worker decodes it into its own memory";
  LS_ASSIGN_OR_RETURN(MappedBytes memory, MappedBytes::Anonymous(bytes));
  if (absl::Status status = decode(memory.writable()); !status.ok()) {
    return Annotate(status, source);
  }
  return DecodedCopy{std::move(memory), 0, false};
}

}  // namespace lockstep::data
