// SPDX-License-Identifier: Apache-2.0
// A library that is preloaded into the programs and lets reads of some files fail, as a disk does
// or somebody who truncates them:
//   LOCKSTEP_FILE_FAULT=PART:WHAT:AFTER
// The reads (pread) of each process of files whose path contains PART, from number AFTER on (from 0
// on), fail with WHAT, an errno such as 5; "truncate" cuts the file to half its length once, before
// that read.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Fault {
  char part[256] = "";
  char what[32] = "";
  long after = 0;

  Fault() {
    const char* text = std::getenv("LOCKSTEP_FILE_FAULT");
    if (text != nullptr && std::sscanf(text, "%255[^:]:%31[^:]:%ld", part, what, &after) != 3) {
      std::abort();
    }
  }
};

std::atomic<long> reads{0};

// Whether the read fails; errno is set then.
bool Fails(int fd) {
  static const Fault fault;
  if (fault.part[0] == '\0') return false;
  char name[64], path[4096];
  std::snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(name, path, sizeof(path) - 1);
  if (length < 0) return false;
  path[length] = '\0';
  if (std::strstr(path, fault.part) == nullptr) return false;
  const long number = reads.fetch_add(1);
  if (number < fault.after) return false;
  if (std::strcmp(fault.what, "truncate") != 0) {
    errno = std::atoi(fault.what);
    return true;
  }
  struct stat info;
  if (number == fault.after && ::fstat(fd, &info) == 0 && ::truncate(path, info.st_size / 2) != 0) {
    std::abort();
  }
  return false;
}

using Pread = ssize_t (*)(int, void*, size_t, off_t);

}  // namespace

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  static const auto real = reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, "pread"));
  return Fails(fd) ? -1 : real(fd, to, bytes, offset);
}
