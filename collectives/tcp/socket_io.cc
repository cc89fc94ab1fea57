// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/socket_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status.h"

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
  // The kernel's limits.
  constexpr int64_t kMostProbes = 127;
  constexpr int64_t kMostBetween = 32767;
  const int on = 1, second = 1;
  const int64_t seconds =
      std::clamp<int64_t>(absl::ToInt64Seconds(silence), 3, kMostProbes * kMostBetween);
  const int between = static_cast<int>((seconds + kMostProbes - 1) / kMostProbes);
  const int probes = static_cast<int>((seconds + between - 1) / between);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof(second));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

absl::Status AllowConnections(int64_t open, int64_t more) {
  const int64_t needed = open + more;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "the limit of open files");
  if (limit.rlim_cur >= static_cast<rlim_t>(needed)) return absl::OkStatus();
  if (limit.rlim_max >= static_cast<rlim_t>(needed)) {
    limit.rlim_cur = static_cast<rlim_t>(needed);
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "connections with the ranks of other hosts take ", needed, " open files of this worker, but ",
      limit.rlim_max, " are allowed (the hard limit, ulimit -Hn): raise it, or use fewer workers"));
}

}  // namespace lockstep
