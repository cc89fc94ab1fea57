// SPDX-License-Identifier: Apache-2.0
// A library that is preloaded into the programs and lets reads of some files fail, as a disk does
// or somebody who truncates them:
//   LOCKSTEP_FILE_FAULT=PART:WHAT:AFTER
// Of the mappings of files whose path contains PART, those of each process from number AFTER on
// (from 0 on) have no pages ("fail"), as on a disk that gives none; or, number AFTER alone, are of
// a file that is cut to half its length before anything is read ("truncate").
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
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

std::atomic<long> mappings{0};

// Returns whether the mapping of `fd` is to be without pages. Truncates, too.
bool Fails(int fd, size_t bytes) {
  static const Fault fault;
  if (fault.part[0] == '\0' || fd < 0) return false;
  char name[64], path[4096];
  std::snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(name, path, sizeof(path) - 1);
  if (length < 0) return false;
  path[length] = '\0';
  if (std::strstr(path, fault.part) == nullptr) return false;
  const long number = mappings.fetch_add(1);
  if (number < fault.after) return false;
  if (std::strcmp(fault.what, "truncate") != 0) return true;
  if (number == fault.after && ::truncate(path, static_cast<off_t>(bytes / 2)) != 0) std::abort();
  return false;
}

using Mmap = void* (*)(void*, size_t, int, int, int, off_t);

}  // namespace

extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  static const auto real = reinterpret_cast<Mmap>(::dlsym(RTLD_NEXT, "mmap"));
  if (!Fails(fd, bytes)) return real(at, bytes, protection, flags, fd, offset);
  const int empty = ::memfd_create("no pages", MFD_CLOEXEC);
  void* const memory = real(at, bytes, protection, flags, empty, 0);
  ::close(empty);
  return memory;
}
