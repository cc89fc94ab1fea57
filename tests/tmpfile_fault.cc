// SPDX-License-Identifier: Apache-2.0
#include "tests/tmpfile_fault.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

namespace lockstep {

int tmpfile_error = 0;

}  // namespace lockstep

// In place of the library's.
extern "C" int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  if (unnamed || (flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  if (!unnamed || lockstep::tmpfile_error == 0) {
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  }
  errno = lockstep::tmpfile_error;
  return -1;
}
