// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/tcp/address.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr int kBacklog = 1024;
// How often another port is tried when one is not free at every address.
constexpr int kTries = 20;

absl::StatusOr<UniqueFd> Listen(SocketAddress address, int* port) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "cannot make a TCP socket");
  if (address.family() == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    const int only = IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) ? 0 : 1;
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (::bind(socket.get(), address.get(), address.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot listen at ", address.ToString()));
  }
  SocketAddress bound;
  bound.size = sizeof(bound.storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    return ErrnoStatus(errno, "cannot tell the port of a listener");
  }
  *port = bound.port();
  return socket;
}

absl::StatusOr<std::vector<UniqueFd>> ListenAtAll(absl::Span<const std::string> addresses,
                                                  int* port) {
  std::vector<UniqueFd> sockets;
  *port = 0;
  for (const std::string& text : addresses) {
    LS_ASSIGN_OR_RETURN(const SocketAddress address, ParseHostAddress(text, *port));
    LS_ASSIGN_OR_RETURN(UniqueFd socket, Listen(address, port));
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

}  // namespace

absl::StatusOr<Listener> Listener::Open(absl::Span<const std::string> addresses) {
  Listener listener;
  if (addresses.empty()) {
    const std::string every[] = {"::", "0.0.0.0"};
    absl::StatusOr<std::vector<UniqueFd>> sockets =
        ListenAtAll(absl::MakeConstSpan(every, 1), &listener.port_);
    if (!sockets.ok()) {  // a host without IPv6
      sockets = ListenAtAll(absl::MakeConstSpan(every + 1, 1), &listener.port_);
    }
    LS_RETURN_IF_ERROR(sockets.status());
    listener.sockets_ = *std::move(sockets);
    return listener;
  }
  for (int i = 0;; ++i) {
    absl::StatusOr<std::vector<UniqueFd>> sockets = ListenAtAll(addresses, &listener.port_);
    if (sockets.ok()) {
      listener.sockets_ = *std::move(sockets);
      return listener;
    }
    if (i == kTries || listener.port_ == 0) return sockets.status();
  }
}

}  // namespace lockstep
