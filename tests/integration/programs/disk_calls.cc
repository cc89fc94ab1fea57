// SPDX-License-Identifier: Apache-2.0
// Preloaded into the programs, lets one call to the disk fail with EIO, whichever it is:
//   LOCKSTEP_DISK_CALL=PROGRAM:PART:NUMBER:MARK
// In PROGRAM, of the calls that read, write, flush, cut or rename a file whose path contains PART,
// the one with this number (from 1 on) fails. The file MARK is made then, and says which it was.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

struct Fault {
  char program[32] = "";
  char part[128] = "";
  long number = 0;
  char mark[512] = "";

  Fault() {
    const char* text = getenv("LOCKSTEP_DISK_CALL");
    if (text == nullptr) return;
    if (sscanf(text, "%31[^:]:%127[^:]:%ld:%511s", program, part, &number, mark) != 4) abort();
    char own[512] = "";
    const ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
    const char* const name = size > 0 ? strrchr(own, '/') : nullptr;
    if (name == nullptr || strcmp(name + 1, program) != 0) number = 0;
  }
};

std::atomic<long> calls{0};

bool FailsAt(const char* call, const char* path) {
  static const Fault fault;
  if (fault.number == 0 || strstr(path, fault.part) == nullptr) return false;
  if (calls.fetch_add(1) + 1 != fault.number) return false;
  const int mark = open(fault.mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  dprintf(mark, "%s %s\n", call, path);
  close(mark);
  errno = EIO;
  return true;
}

bool Fails(const char* call, int fd) {
  char link[64];
  char path[512];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  if (size < 0) return false;
  path[size] = '\0';
  return FailsAt(call, path);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define ON_FILE(result, name, parameters, ...)                \
  result name parameters {                                    \
    static auto* const next = Next<result parameters>(#name); \
    return Fails(#name, fd) ? -1 : next(__VA_ARGS__);         \
  }

extern "C" {

ON_FILE(ssize_t, read, (int fd, void* data, size_t size), fd, data, size)
ON_FILE(ssize_t, pread, (int fd, void* data, size_t size, off_t at), fd, data, size, at)
ON_FILE(ssize_t, pread64, (int fd, void* data, size_t size, off64_t at), fd, data, size, at)
ON_FILE(ssize_t, write, (int fd, const void* data, size_t size), fd, data, size)
ON_FILE(ssize_t, writev, (int fd, const iovec* parts, int count), fd, parts, count)
ON_FILE(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t at), fd, data, size, at)
ON_FILE(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t at), fd, data, size, at)
ON_FILE(int, fsync, (int fd), fd)
ON_FILE(int, fdatasync, (int fd), fd)
ON_FILE(int, ftruncate, (int fd, off_t size) noexcept, fd, size)
ON_FILE(int, ftruncate64, (int fd, off64_t size) noexcept, fd, size)

int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  return FailsAt("rename", from) ? -1 : next(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  static auto* const next = Next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return FailsAt("renameat2", from) ? -1 : next(from_folder, from, to_folder, to, flags);
}
}
