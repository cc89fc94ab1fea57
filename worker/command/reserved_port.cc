// SPDX-License-Identifier: Apache-2.0
#include "worker/command/reserved_port.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

constexpr int kTries = 200;
constexpr int kLowest = 10000;
constexpr int kHighest = 65535;

// Ports that the kernel gives to nobody by itself.
std::vector<int> QuietPorts() {
  int first = 32768, last = 60999;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  range >> first >> last;
  std::vector<int> ports;
  for (int port = kLowest; port <= kHighest; ++port) {
    if (port < first || port > last) ports.push_back(port);
  }
  return ports;
}

uint32_t Random() {
  uint32_t value = 0;
  if (::getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value)) {
    value = static_cast<uint32_t>(::getpid()) * 2654435761u;
  }
  return value;
}

// Others that look for a port see that this one is somebody's.
UniqueFd TakeName(int port) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrCat("lockstep-port-", port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (!socket.valid() || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return UniqueFd();
  }
  return socket;
}

// On all addresses of a family; 0: a port of the kernel's choice, which `*port` becomes.
UniqueFd Bind(int family, int* port) {
  UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(*port));
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  const int one = 1;
  if (family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
  }
  sockaddr* address =
      family == AF_INET ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
  socklen_t size = family == AF_INET ? sizeof(v4) : sizeof(v6);
  if (::bind(socket.get(), address, size) != 0) return UniqueFd();
  if (*port == 0 && ::getsockname(socket.get(), address, &size) == 0) {
    *port = ntohs(family == AF_INET ? v4.sin_port : v6.sin6_port);
  }
  return socket;
}

}  // namespace

absl::StatusOr<ReservedPort> ReservedPort::Take() {
  const std::vector<int> quiet = QuietPorts();
  for (int attempt = 0; attempt < kTries; ++attempt) {
    ReservedPort taken;
    // After some tries, or where the kernel gives all ports away, any will do.
    const bool any = quiet.empty() || attempt >= kTries / 2;
    taken.port_ = any ? 0 : quiet[Random() % quiet.size()];
    taken.v4_ = Bind(AF_INET, &taken.port_);
    if (!taken.v4_.valid()) continue;
    taken.v6_ = Bind(AF_INET6, &taken.port_);
    if (!taken.v6_.valid() && errno == EADDRINUSE) continue;
    taken.name_ = TakeName(taken.port_);
    if (taken.name_.valid()) return taken;
  }
  return absl::ResourceExhaustedError("no TCP port is free on this host for the command's rank 0");
}

void ReservedPort::Release() {
  v4_.reset();
  v6_.reset();
}

}  // namespace lockstep::worker
