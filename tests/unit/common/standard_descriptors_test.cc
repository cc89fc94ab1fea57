// SPDX-License-Identifier: Apache-2.0
#include "common/standard_descriptors.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Returns the status of a child without the descriptor `closed`; it exits with 0 when what is
// opened after TakeStandardDescriptors() has another number, and neither stream can be used where
// it was.
int WithoutDescriptor(int closed) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(closed);
    TakeStandardDescriptors();
    if (::open("/dev/null", O_RDWR | O_CLOEXEC) <= STDERR_FILENO) ::_exit(1);
    char byte = 0;
    const ssize_t done =
        closed == STDIN_FILENO ? ::read(closed, &byte, 1) : ::write(closed, &byte, 1);
    if (done >= 0 || errno != EBADF) ::_exit(2);
    // As it was, for programs that are started.
    if ((::fcntl(closed, F_GETFD) & FD_CLOEXEC) != 0) ::_exit(3);
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

TEST(StandardDescriptors, NothingElseGetsTheNumbersOfClosedOnes) {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_EQ(WithoutDescriptor(fd), 0) << fd;
  }
}

}  // namespace
}  // namespace lockstep
