// SPDX-License-Identifier: Apache-2.0
// Preloaded into a coordinator, makes the disk of its journal, or of the file that
// $LOCKSTEP_TEST_DISK_OF names the end of, as $LOCKSTEP_TEST_DISK, a file, says: "full" (ENOSPC),
// "broken" (EIO), "forgets" (fdatasync fails with EIO), "stalls" (no write ends until the file says
// something else); anything else: as it is. One that is named and stalls lets nobody look at it by
// its path, either.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

bool IsMeant(int fd) {
  char link[64];
  char path[512];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  if (size < 0) return false;
  path[size] = '\0';
  const char* file = getenv("LOCKSTEP_TEST_DISK_OF");
  return strstr(path, file == nullptr ? "journal.db" : file) != nullptr;
}

bool Says(const char* word) {
  const char* file = getenv("LOCKSTEP_TEST_DISK");
  if (file == nullptr) return false;
  const int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[16] = {};
  const ssize_t size = read(fd, text, sizeof(text) - 1);
  close(fd);
  return size > 0 && strncmp(text, word, strlen(word)) == 0;
}

// Returns whether an operation on `fd` fails; errno says how.
bool Fails(int fd) {
  if (!IsMeant(fd)) return false;
  while (Says("stalls")) usleep(10000);
  if (Says("full")) {
    errno = ENOSPC;
    return true;
  }
  if (Says("broken")) {
    errno = EIO;
    return true;
  }
  return false;
}

void AwaitPath(const char* path) {
  const char* file = getenv("LOCKSTEP_TEST_DISK_OF");
  if (file == nullptr || strstr(path, file) == nullptr) return;
  while (Says("stalls")) usleep(10000);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  return Fails(fd) ? -1 : next(fd, data, size);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return Fails(fd) ? -1 : next(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return Fails(fd) ? -1 : next(fd, data, size, at);
}
int fdatasync(int fd) {
  static auto* const next = Next<int(int)>("fdatasync");
  if (IsMeant(fd) && Says("forgets")) {
    errno = EIO;
    return -1;
  }
  return next(fd);
}
int access(const char* path, int mode) {
  static auto* const next = Next<int(const char*, int)>("access");
  AwaitPath(path);
  return next(path, mode);
}
int stat(const char* path, struct stat* info) {
  static auto* const next = Next<int(const char*, struct stat*)>("stat");
  AwaitPath(path);
  return next(path, info);
}
int stat64(const char* path, struct stat64* info) {
  static auto* const next = Next<int(const char*, struct stat64*)>("stat64");
  AwaitPath(path);
  return next(path, info);
}
}
