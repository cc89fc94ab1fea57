// SPDX-License-Identifier: Apache-2.0
#include "common/close_descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep {
namespace {

// A limit may be 10^9, and to try each would take minutes.
constexpr long kMostTried = 1 << 16;

// Returns the number that `name` is; -1: none.
int NumberOf(const char* name) {
  int number = 0;
  if (*name == '\0') return -1;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9') return -1;
    number = number * 10 + (*name - '0');
  }
  return number;
}

bool CloseRanges(int first, int keep) {
  const auto from = static_cast<unsigned int>(first);
  if (keep < first) return ::close_range(from, ~0u, 0) == 0;
  const auto kept = static_cast<unsigned int>(keep);
  if (kept > from && ::close_range(from, kept - 1, 0) != 0) return false;
  return ::close_range(kept + 1, ~0u, 0) == 0;
}

// readdir() would allocate. The kernel lists by number, so what is closed meanwhile moves nothing.
bool CloseListed(int first, int keep) {
  const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  alignas(dirent64) char buffer[4096];
  long size;
  while ((size = ::syscall(SYS_getdents64, folder, buffer, sizeof(buffer))) > 0) {
    for (long at = 0; at < size;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(buffer + at);
      at += entry->d_reclen;
      const int fd = NumberOf(entry->d_name);
      if (fd >= first && fd != keep && fd != folder) ::close(fd);
    }
  }
  ::close(folder);
  return size == 0;
}

}  // namespace

void CloseDescriptors(int first, int keep) {
  // A kernel before 5.9, or a filter of system calls.
  if (CloseRanges(first, keep) || CloseListed(first, keep)) return;
  const long limit = ::sysconf(_SC_OPEN_MAX);
  const long end = limit < 0 ? kMostTried : std::min(limit, kMostTried);
  for (int fd = first; fd < end; ++fd) {
    if (fd != keep) ::close(fd);
  }
}

}  // namespace lockstep
