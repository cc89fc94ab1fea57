// SPDX-License-Identifier: Apache-2.0
// A program may be started without a standard input, output or error (>&-).
// Thread-safety: for the beginning of main, before there are threads.
#ifndef LOCKSTEP_COMMON_STANDARD_DESCRIPTORS_H_
#define LOCKSTEP_COMMON_STANDARD_DESCRIPTORS_H_

#include <fcntl.h>
#include <unistd.h>

namespace lockstep {

// Holds the numbers 0, 1 and 2 where they are closed, so that no file or socket that is opened
// later gets them and is read or written as one of the streams. What stands there can be used no
// more than what is closed (EBADF), which is told like any other error. Programs that are started
// inherit it.
inline void TakeStandardDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest number that is free, which is this one.
    ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_STANDARD_DESCRIPTORS_H_
