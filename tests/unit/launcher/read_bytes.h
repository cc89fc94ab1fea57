// SPDX-License-Identifier: Apache-2.0
// What comes out of a pipe. Thread-safety: as read(2).
#ifndef LOCKSTEP_TESTS_UNIT_LAUNCHER_READ_BYTES_H_
#define LOCKSTEP_TESTS_UNIT_LAUNCHER_READ_BYTES_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace lockstep::launcher {

// So many bytes of `fd`. Blocks; fails the test where it ends before.
inline std::string ReadBytes(int fd, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::read(fd, text.data() + done, bytes - done);
    EXPECT_GT(n, 0);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_TESTS_UNIT_LAUNCHER_READ_BYTES_H_
