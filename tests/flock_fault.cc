// SPDX-License-Identifier: Apache-2.0
#include "tests/flock_fault.h"

#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep {

int flock_error = 0;

}  // namespace lockstep

// In place of the library's.
extern "C" int flock(int fd, int operation) noexcept {
  if (lockstep::flock_error == 0) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = lockstep::flock_error;
  return -1;
}
