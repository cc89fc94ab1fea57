// SPDX-License-Identifier: Apache-2.0
// An owned file descriptor.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COMMON_FD_H_
#define LOCKSTEP_COMMON_FD_H_

#include <unistd.h>

#include <utility>

namespace lockstep {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor up to the caller.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  // Closes the descriptor held so far and holds `fd`.
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_FD_H_
