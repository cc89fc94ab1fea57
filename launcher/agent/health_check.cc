// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/health_check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fd.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kTrialBytes = size_t{64} << 10;
constexpr size_t kTrialMemory = size_t{1} << 20;

std::string Reason(int error) {
  char buffer[128] = {};
  return ::strerror_r(error, buffer, sizeof(buffer));
}

// The folder itself, or the nearest one above it that is there.
std::string Existing(std::string folder) {
  struct stat info {};
  while (::stat(folder.c_str(), &info) != 0 && errno == ENOENT) {
    const size_t slash = folder.find_last_not_of('/');
    const size_t end = slash == std::string::npos ? slash : folder.rfind('/', slash);
    if (end == std::string::npos) return ".";
    folder = end == 0 ? "/" : folder.substr(0, end);
  }
  return folder;
}

// Says nothing about the disk.
bool IsOfTheFolder(int error) {
  return error == EACCES || error == EPERM || error == ENOENT || error == ENOTDIR ||
         error == ELOOP || error == ENAMETOOLONG || error == EROFS;
}

// A file that nobody sees and that is gone with its descriptor.
UniqueFd OpenTrial(const std::string& folder) {
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = absl::StrCat(folder, "/.lockstep-trial-XXXXXX");
  fd.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (fd.valid()) ::unlink(name.c_str());
  return fd;
}

// The error of a system call; 0: what was written came back.
int WriteAndReadBack(int fd) {
  std::vector<char> data(kTrialBytes), back(kTrialBytes);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 131 + i / 251);
  for (size_t done = 0; done < data.size();) {
    const ssize_t n =
        ::pwrite(fd, data.data() + done, data.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd) != 0) return errno;
  // From the disk, where the system lets go of its copy.
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  for (size_t done = 0; done < back.size();) {
    const ssize_t n = ::pread(fd, back.data() + done, back.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    done += static_cast<size_t>(n);
  }
  return data == back ? 0 : EBADMSG;
}

std::string MiB(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

}  // namespace

std::string ExamineDisk(const std::string& folder, bool own, int64_t least_free) {
  const std::string there = Existing(folder);
  struct statvfs disk {};
  if (::statvfs(there.c_str(), &disk) == 0 && disk.f_blocks > 0) {  // else it does not say
    const int64_t free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (free < least_free) {
      return absl::StrCat("the disk of ", folder, " has ", MiB(free), " left, and ",
                          MiB(least_free), " are needed: make room");
    }
  }
  const UniqueFd fd = OpenTrial(there);
  const int error = fd.valid() ? WriteAndReadBack(fd.get()) : errno;
  if (error == 0 || (!own && IsOfTheFolder(error))) return "";
  if (error == EBADMSG) {
    return absl::StrCat("the disk of ", folder, " does not give back what was written to it");
  }
  return absl::StrCat("nothing can be written in ", folder, ": ", Reason(error));
}

std::string ExamineSharedMemory() {
  const UniqueFd fd(::memfd_create("lockstep-trial", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), kTrialMemory) != 0 ||
      ::fallocate(fd.get(), 0, 0, kTrialMemory) != 0) {
    return absl::StrCat("workers can get no memory to share: ", Reason(errno));
  }
  void* const memory =
      ::mmap(nullptr, kTrialMemory, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return absl::StrCat("workers cannot map memory that they share: ", Reason(errno));
  }
  std::memset(memory, 0x5a, kTrialMemory);
  const bool same = static_cast<const char*>(memory)[kTrialMemory - 1] == 0x5a;
  ::munmap(memory, kTrialMemory);
  return same ? "" : "memory does not keep what was written to it";
}

std::string ExamineMemory(int64_t available) {
  if (available >= kLeastFreeMemory) return "";
  return absl::StrCat(MiB(std::max<int64_t>(0, available)), " of memory are free, and ",
                      MiB(kLeastFreeMemory), " are needed to begin");
}

}  // namespace lockstep::launcher
