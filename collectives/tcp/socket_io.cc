// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/socket_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {

Filled ReadUpTo(int socket, size_t bytes, std::string* input, int* error) {
  while (input->size() < bytes) {
    char buffer[256];
    const size_t want = std::min(sizeof(buffer), bytes - input->size());
    const ssize_t got = ::recv(socket, buffer, want, MSG_DONTWAIT);
    if (got > 0) {
      input->append(buffer, static_cast<size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Filled::kLater;
    *error = got == 0 ? 0 : errno;
    return Filled::kEnded;
  }
  return Filled::kYes;
}

bool SendAll(int socket, std::string_view text) {
  return ::send(socket, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

void SendWithoutDelay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void ProbeWhenIdle(int socket, absl::Duration silence) {
  constexpr int kMostProbes = 127;  // the kernel's limit
  const int on = 1, second = 1;
  const int probes =
      static_cast<int>(std::clamp<int64_t>(absl::ToInt64Seconds(silence), 3, kMostProbes));
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof(second));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof(second));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

}  // namespace lockstep
