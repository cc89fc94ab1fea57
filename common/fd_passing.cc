// SPDX-License-Identifier: Apache-2.0
#include "common/fd_passing.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {
constexpr size_t kMaxBytes = 64 << 10;
constexpr size_t kMaxFds = 16;
}  // namespace

absl::Status SendFds(int socket, std::string_view data, absl::Span<const int> fds) {
  LS_CHECK_LE(data.size(), kMaxBytes);
  LS_CHECK_LE(fds.size(), kMaxFds);
  iovec iov{const_cast<char*>(data.data()), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    return ErrnoStatus(errno, "sendmsg");
  }
}

absl::StatusOr<FdMessage> RecvFds(int socket) {
  FdMessage result;
  result.data.resize(kMaxBytes);
  iovec iov{result.data.data(), result.data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  bool reset = false;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    // A peer that died without reading everything resets the connection, once, before what it sent.
  } while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return absl::DeadlineExceededError("no message in time");
    }
    return ErrnoStatus(errno, "recvmsg");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      result.fds.emplace_back(fd);
    }
  }
  if (n == 0 && result.fds.empty()) return absl::UnavailableError("peer closed the socket");
  result.data.resize(static_cast<size_t>(n));
  return result;
}

}  // namespace lockstep
