// SPDX-License-Identifier: Apache-2.0
// Numeric addresses of TCP sockets: "10.0.0.1:41234", "[fd00::1]:41234", "[fe80::1%eth0]:41234".
// Names are never resolved. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_TCP_ADDRESS_H_
#define LOCKSTEP_COLLECTIVES_TCP_ADDRESS_H_

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lockstep {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  int port() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string ToString() const;
};

// Errors: InvalidArgument, with the text.
absl::StatusOr<SocketAddress> ParseSocketAddress(std::string_view text);
// Of an address without a port: "10.0.0.1", "fd00::1".
absl::StatusOr<SocketAddress> ParseHostAddress(std::string_view text, int port);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_ADDRESS_H_
