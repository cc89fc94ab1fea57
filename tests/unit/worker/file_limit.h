// SPDX-License-Identifier: Apache-2.0
// A disk that takes no more, as far as this process sees it. Thread-safety: one at a time.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_FILE_LIMIT_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_FILE_LIMIT_H_

#include <sys/resource.h>

#include <csignal>

#include "gtest/gtest.h"

namespace lockstep::worker {

// No file may have more bytes while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &old_), 0);
    const rlimit small{bytes, old_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FileLimit() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &old_), 0);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*const handler_)(int);
  rlimit old_{};
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_FILE_LIMIT_H_
