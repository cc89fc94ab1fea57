// SPDX-License-Identifier: Apache-2.0
// Preloaded into the programs, lets something happen at one call to the disk, whichever it is:
//   LOCKSTEP_DISK_CALL=PROGRAM:PART:NUMBER:WHAT:MARK
// In PROGRAM, of the calls that read, write, flush, cut or rename a file whose path contains PART,
// it happens at the one with this number (from 1 on). WHAT is
//   fails   the call fails with EIO
//   killed  of the calls that change a file: the process is killed instead
//   power   the same, and of what was written and not flushed a part is lost, drawn by the number
//   slow    of the calls that flush a file: it takes six seconds
// The file MARK is made then, and says which call it was.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace {

struct Fault {
  char program[32] = "";
  char part[128] = "";
  long number = 0;
  char what[16] = "";
  char mark[512] = "";

  Fault() {
    const char* text = getenv("LOCKSTEP_DISK_CALL");
    if (text == nullptr) return;
    if (sscanf(text, "%31[^:]:%127[^:]:%ld:%15[^:]:%511s", program, part, &number, what, mark) != 5)
      abort();
    char own[512] = "";
    const ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
    const char* const name = size > 0 ? strrchr(own, '/') : nullptr;
    if (name == nullptr || strcmp(name + 1, program) != 0) number = 0;
  }
  bool Is(const char* name) const { return strcmp(what, name) == 0; }
};

const Fault& TheFault() {
  static const Fault fault;
  return fault;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string PathOf(int fd) {
  char link[64];
  char path[512];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path));
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

// What a disk without power keeps: all that was flushed, and any part of the rest. Sectors of 512
// bytes are whole.
class Unflushed {
 public:
  // Before `size` bytes are written to a file, or before it is cut to `at`.
  void Note(int fd, const std::string& path, const void* data, size_t size, off_t at) {
    Change change{path, at, static_cast<const char*>(data), size, "", lseek(fd, 0, SEEK_END)};
    static auto* const read = Next<ssize_t(int, void*, size_t, off64_t)>("pread64");
    // Also what a shorter file loses.
    change.old.resize(
        data != nullptr ? size : static_cast<size_t>(std::max<off_t>(change.length - at, 0)));
    const ssize_t there = read(fd, change.old.data(), change.old.size(), at);
    change.old.resize(static_cast<size_t>(std::max<ssize_t>(there, 0)));
    changes_.push_back(std::move(change));
  }

  void Flush(const std::string& path) {
    std::erase_if(changes_, [&](const Change& change) { return change.path == path; });
  }

  // Takes all back, and does a part of it again.
  void LoseSome(unsigned seed) {
    std::mt19937 draw(seed);
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) change->Undo();
    for (const Change& change : changes_) change.Redo(draw);
  }

 private:
  struct Change {
    Change(std::string file, off_t offset, const char* bytes, size_t count, std::string before,
           off_t long_before)
        : path(std::move(file)),
          at(offset),
          cuts(bytes == nullptr),
          old(std::move(before)),
          length(long_before) {
      if (bytes != nullptr) fresh.assign(bytes, count);
    }

    void Undo() const {
      const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
      Put(fd, old.data(), old.size(), at);
      static auto* const cut = Next<int(int, off64_t)>("ftruncate64");
      if (cut(fd, length) != 0) abort();
      close(fd);
    }

    void Redo(std::mt19937& draw) const {
      const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
      static auto* const cut = Next<int(int, off64_t)>("ftruncate64");
      if (cuts && draw() % 2 == 0 && cut(fd, at) != 0) abort();
      for (size_t from = 0; from < fresh.size();) {
        const size_t sector = 512 - (static_cast<size_t>(at) + from) % 512;
        const size_t size = std::min(sector, fresh.size() - from);
        if (draw() % 2 == 0) Put(fd, fresh.data() + from, size, at + static_cast<off_t>(from));
        from += size;
      }
      close(fd);
    }

    static void Put(int fd, const char* data, size_t size, off_t at) {
      static auto* const write = Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
      if (write(fd, data, size, at) != static_cast<ssize_t>(size)) abort();
    }

    std::string path;
    off_t at;
    bool cuts;
    std::string old, fresh;
    off_t length;  // of the file before
  };
  std::vector<Change> changes_;
};

std::mutex mutex;
Unflushed& TheUnflushed() {
  static Unflushed unflushed;
  return unflushed;
}
std::atomic<long> calls{0};

// Counts the call. Returns whether it is the one, and says so in MARK.
bool IsIt(const char* call, const std::string& path) {
  const Fault& fault = TheFault();
  if (fault.number == 0 || path.find(fault.part) == std::string::npos) return false;
  if (calls.fetch_add(1) + 1 != fault.number) return false;
  const int mark = open(fault.mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  dprintf(mark, "%s %s\n", call, path.c_str());
  close(mark);
  return true;
}

// Whether it fails. It changes a file unless it reads.
bool FailsAt(const char* call, const std::string& path, bool reads) {
  const Fault& fault = TheFault();
  const bool fails = fault.Is("fails");
  if (fault.Is("slow") || (reads && !fails) || !IsIt(call, path)) return false;
  if (!fails) {
    if (fault.Is("power")) TheUnflushed().LoseSome(static_cast<unsigned>(fault.number));
    raise(SIGKILL);
  }
  errno = EIO;
  return true;
}

bool IsLost(const std::string& path) {
  const Fault& fault = TheFault();
  return fault.number != 0 && fault.Is("power") && path.find(fault.part) != std::string::npos;
}

// Before the call is made, and while no other waits for it.
void TakeTime(const char* call, int fd) {
  constexpr unsigned kSlowSeconds = 6;
  if (TheFault().Is("slow") && IsIt(call, PathOf(fd))) sleep(kSlowSeconds);
}

bool Fails(const char* call, int fd, bool reads = false) {
  return FailsAt(call, PathOf(fd), reads);
}

}  // namespace

#define READS(result, name, parameters, ...)                  \
  result name parameters {                                    \
    static auto* const next = Next<result parameters>(#name); \
    return Fails(#name, fd, true) ? -1 : next(__VA_ARGS__);   \
  }
#define WRITES_AT(name, offset)                                                       \
  ssize_t name(int fd, const void* data, size_t size, offset at) {                    \
    static auto* const next = Next<ssize_t(int, const void*, size_t, offset)>(#name); \
    const std::lock_guard lock(mutex);                                                \
    if (Fails(#name, fd)) return -1;                                                  \
    if (const std::string path = PathOf(fd); IsLost(path))                            \
      TheUnflushed().Note(fd, path, data, size, at);                                  \
    return next(fd, data, size, at);                                                  \
  }
#define FLUSHES(name)                                  \
  int name(int fd) {                                   \
    static auto* const next = Next<int(int)>(#name);   \
    TakeTime(#name, fd);                               \
    const std::lock_guard lock(mutex);                 \
    if (Fails(#name, fd)) return -1;                   \
    const int result = next(fd);                       \
    if (result == 0) TheUnflushed().Flush(PathOf(fd)); \
    return result;                                     \
  }
#define CUTS(name, offset)                                   \
  int name(int fd, offset size) noexcept {                   \
    static auto* const next = Next<int(int, offset)>(#name); \
    const std::lock_guard lock(mutex);                       \
    if (Fails(#name, fd)) return -1;                         \
    if (const std::string path = PathOf(fd); IsLost(path))   \
      TheUnflushed().Note(fd, path, nullptr, 0, size);       \
    return next(fd, size);                                   \
  }

extern "C" {

READS(ssize_t, read, (int fd, void* data, size_t size), fd, data, size)
READS(ssize_t, pread, (int fd, void* data, size_t size, off_t at), fd, data, size, at)
READS(ssize_t, pread64, (int fd, void* data, size_t size, off64_t at), fd, data, size, at)
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)
FLUSHES(fsync)
FLUSHES(fdatasync)
CUTS(ftruncate, off_t)
CUTS(ftruncate64, off64_t)

// Journals are written at offsets; these are counted only.
ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  return Fails("write", fd) ? -1 : next(fd, data, size);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  static auto* const next = Next<ssize_t(int, const iovec*, int)>("writev");
  return Fails("writev", fd) ? -1 : next(fd, parts, count);
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  return FailsAt("rename", from, false) ? -1 : next(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  static auto* const next = Next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return FailsAt("renameat2", from, false) ? -1 : next(from_folder, from, to_folder, to, flags);
}
}
